"""mbarrier: init, inval, arrivals, byte counts, and waits for a phase."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from flashsmith.emulator.copies.async_state import (
    AsyncState,
    Mask,
    active_lanes,
    at_lanes,
    cluster_target,
    told,
)
from flashsmith.emulator.copies.mbarrier import Ints
from flashsmith.emulator.machine.opcode import Unknown, opcode
from flashsmith.emulator.machine.unit import Wait
from flashsmith.emulator.machine.values import Value, distinct
from flashsmith.emulator.ptx.instruction import Address, Instruction

if TYPE_CHECKING:
    from flashsmith.emulator.machine.chunk import Chunk
    from flashsmith.emulator.machine.emit import Emitter
    from flashsmith.emulator.machine.unit import Unit


def _writes(i: Instruction) -> tuple[int, ...]:
    return () if not i.operands or isinstance(i.operands[0], Address) else (0,)


@opcode(
    "mbarrier",
    writes=_writes,
    cuts=lambda i: "after" if i.has("try_wait") else "",
    counts_as="barrier",
    touches_memory=True,
)
def mbarrier(e: Emitter, i: Instruction) -> None:
    """Translates every form of mbarrier."""
    position = 0 if isinstance(i.operands[0], Address) else 1
    address = e.address(i.operands[position], "shared")
    rest = i.operands[position + 1 :]
    if i.has("init") or i.has("inval"):
        count = e.read(rest[0], "u32") if rest else "None"
        name = e.use(_init if i.has("init") else _inval)
        with e.active() as mask:
            e.do(f"{name}(c, u, {mask}, {e.index}, {address}, {count})")
    elif i.has("test_wait") or i.has("try_wait"):
        _wait(e, i, address)
    elif i.has("arrive") and not i.has("noComplete"):
        tx = e.read(rest[0], "u32") if i.has("expect_tx") else "None"
        count = e.read(rest[0], "u32") if rest and not i.has("expect_tx") else "1"
        with e.active() as mask:
            token = e.assign(f"{e.use(_arrive)}(c, u, {mask}, {e.index}, {address}, {count}, {tx})")
            if position:
                guard, e.guard = e.guard, None
                e.write(i.operands[0], token, "u64")
                e.guard = guard
    elif i.has("expect_tx") or i.has("complete_tx"):
        name = e.use(_expect if i.has("expect_tx") else _complete)
        with e.active() as mask:
            e.do(f"{name}(c, u, {mask}, {e.index}, {address}, {e.read(rest[0], 'u32')})")
    else:
        raise Unknown("this form of mbarrier")


def _wait(e: Emitter, i: Instruction, address: str) -> None:
    ctas = i.has("try_wait")
    parity = i.has("parity")
    phase = e.read(i.operands[2], "u32" if parity else "u64")
    name = e.use(_try_wait if ctas else _test_wait)
    with e.active() as mask:
        result = e.assign(f"{name}(c, u, {mask}, {e.index}, {address}, {phase}, {parity})")
        e.write(i.operands[0], result, "pred")


def _barrier_of(c: Chunk, u: Unit, m: Mask, address: Value) -> tuple[NDArray[np.intp], Ints, Ints]:
    lanes = active_lanes(u, m)
    cta, at = cluster_target(c, u.lane_cta[lanes], at_lanes(address, lanes))
    return lanes, cta, at


def find_barrier(
    c: Chunk,
    u: Unit,
    index: int,
    lanes: NDArray[np.intp],
    cta: Ints,
    at: Ints,
    *,
    fenced: bool = False,
) -> Ints:
    """Columns of barriers whose initialisation the using warps know of."""
    state = AsyncState.of(c)
    column: Ints = told(c, u, index, lanes, state.barriers.find, cta, at)
    if c.options.checks:
        source, warp = u.lane_cta[lanes], u.lane_warp[lanes]
        for entry in state.unseen(cta, column, source, warp, fenced)[:1].tolist():
            by = int(state.init_warp[cta[entry], column[entry]])
            missing = (
                "no fence.mbarrier_init and barrier make its initialisation visible to copies"
                if fenced
                else "nothing orders its initialisation before this use"
            )
            c.fault(
                "mbarrier initialisation race", missing, index, u, lane=int(lanes[entry]),
                address=int(at[entry]), other=f"mbarrier.init by warp {by}",
            )  # fmt: skip
    return column


def _init(c: Chunk, u: Unit, m: Mask, index: int, address: Value, count: Value) -> None:
    lanes, cta, at = _barrier_of(c, u, m, address)
    state = AsyncState.of(c)
    column = told(c, u, index, lanes, state.barriers.init, cta, at, at_lanes(count, lanes))
    state.initialised(cta, column, u.lane_warp[lanes], index)


def _inval(c: Chunk, u: Unit, m: Mask, index: int, address: Value, _: None) -> None:
    lanes, cta, at = _barrier_of(c, u, m, address)
    told(c, u, index, lanes, AsyncState.of(c).barriers.inval, cta, at)


def _arrive(
    c: Chunk, u: Unit, m: Mask, index: int, address: Value, count: Value, tx: Value
) -> Value:
    lanes, cta, at = _barrier_of(c, u, m, address)
    state = AsyncState.of(c)
    column = find_barrier(c, u, index, lanes, cta, at)
    state.release(cta, column, u.lane_cta[lanes], u.lane_warp[lanes])
    bytes_ = None if tx is None else at_lanes(tx, lanes)
    token = told(c, u, index, lanes, state.barriers.arrive, cta, at, at_lanes(count, lanes), bytes_)
    out = np.zeros(32 * u.pairs, np.uint64)
    out[lanes] = token.astype(np.uint64)
    return out


def _expect(c: Chunk, u: Unit, m: Mask, index: int, address: Value, tx: Value) -> None:
    lanes, cta, at = _barrier_of(c, u, m, address)
    told(c, u, index, lanes, AsyncState.of(c).barriers.expect_tx, cta, at, at_lanes(tx, lanes))


def _complete(c: Chunk, u: Unit, m: Mask, index: int, address: Value, tx: Value) -> None:
    lanes, cta, at = _barrier_of(c, u, m, address)
    told(c, u, index, lanes, AsyncState.of(c).barriers.complete_tx, cta, at, at_lanes(tx, lanes))


def _done(state: AsyncState, cta: Ints, at: Ints, phase: Ints, parity: bool) -> Value:
    if parity:
        return state.barriers.parity_done(cta, at, phase)
    return state.barriers.token_done(cta, at, phase)


def _test_wait(
    c: Chunk, u: Unit, m: Mask, index: int, address: Value, phase: Value, parity: bool
) -> Value:
    lanes, cta, at = _barrier_of(c, u, m, address)
    state = AsyncState.of(c)
    wanted = at_lanes(phase, lanes)
    column = told(c, u, index, lanes, state.barriers.find, cta, at)
    done = told(c, u, index, lanes, _done, state, cta, at, wanted, parity)
    if done.any():
        state.acquire(cta[done], column[done], u.lane_warp[lanes][done])
    out = np.zeros(32 * u.pairs, np.bool_)
    out[lanes] = done
    u.yielded = u.yielded or not done.all()
    return out


def _askers(u: Unit, m: Mask, *asked: Value) -> NDArray[np.intp]:
    """The lanes that wait; the first of each warp, where all of a warp ask for the same."""
    if m is None and all(
        value.ndim == 0 or (value.reshape(-1, 32) == value[::32, None]).all() for value in asked
    ):
        return np.arange(0, 32 * u.pairs, 32)
    return active_lanes(u, m)


def _try_wait(
    c: Chunk, u: Unit, m: Mask, index: int, address: Value, phase: Value, parity: bool
) -> Value:
    """Always true: the unit sleeps until it is."""
    lanes = _askers(u, m, address, phase)
    cta, at = cluster_target(c, u.lane_cta[lanes], at_lanes(address, lanes))
    state = AsyncState.of(c)
    find_barrier(c, u, index, lanes, cta, at)
    wanted = at_lanes(phase, lanes)
    told(c, u, index, lanes, _done, state, cta, at, wanted, parity)
    u.wait = PhaseWait(state, cta, at, wanted, parity, u.lane_warp[lanes], lanes // 32, u.pairs)
    return np.bool_(True)


class PhaseWait(Wait):
    """Warps that wait for the end of a phase; entries are lanes, `pair` says whose."""

    def __init__(
        self,
        state: AsyncState,
        cta: Ints,
        address: Ints,
        phase: Ints,
        parity: bool,
        warp: Ints,
        pair: NDArray[np.intp],
        pairs: int,
    ) -> None:
        pair, cta, address, phase, warp = distinct(pair, cta, address, phase, warp)
        self.state, self.parity, self.pairs = state, parity, pairs
        self.cta, self.address, self.phase = cta, address, phase
        self.warp, self.pair = warp, pair

    def epoch(self) -> int:
        """No phase ends without being counted."""
        return self.state.barriers.changes

    def ready(self) -> NDArray[np.bool_]:
        """Which pairs have nothing left to wait for."""
        done = _done(self.state, self.cta, self.address, self.phase, self.parity)
        out = np.ones(self.pairs, np.bool_)
        np.logical_and.at(out, self.pair, done)
        return out

    def finish(self, _: Unit) -> None:
        """Takes over what the arrivals knew."""
        column = self.state.barriers.find(self.cta, self.address)
        self.state.acquire(self.cta, column, self.warp)

    def describe(self, pair: int) -> str:
        """The barrier, its phase and what it lacks."""
        done = _done(self.state, self.cta, self.address, self.phase, self.parity)
        mine = np.flatnonzero((self.pair == pair) & ~done)
        at = int(mine[0]) if len(mine) else int(np.flatnonzero(self.pair == pair)[0])
        which = f"parity {int(self.phase[at])}" if self.parity else f"phase {int(self.phase[at])}"
        barrier = self.state.barriers.describe(int(self.cta[at]), int(self.address[at]))
        return f"wait for {which} of {barrier}"

    def select(self, pairs: NDArray[np.intp]) -> PhaseWait:
        """The same wait for some pairs."""
        place = np.full(self.pairs, -1)
        place[pairs] = np.arange(len(pairs))
        kept = place[self.pair] >= 0
        return PhaseWait(
            self.state,
            self.cta[kept],
            self.address[kept],
            self.phase[kept],
            self.parity,
            self.warp[kept],
            place[self.pair[kept]],
            len(pairs),
        )
