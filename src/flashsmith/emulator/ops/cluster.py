"""Clusters, register pools, elections and the fences of the asynchronous proxy."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from flashsmith.emulator.checks.launch_checks import most_registers
from flashsmith.emulator.copies.async_state import RANK_SHIFT, AsyncState, Mask
from flashsmith.emulator.machine.opcode import Unknown, opcode
from flashsmith.emulator.machine.unit import LANES, Wait
from flashsmith.emulator.machine.values import Value
from flashsmith.emulator.ops.barrier import emit_thread_fence
from flashsmith.emulator.ordering.clocks import at_proxy_fence
from flashsmith.emulator.ptx.instruction import Imm, Instruction, Pair

if TYPE_CHECKING:
    from flashsmith.emulator.machine.chunk import Chunk
    from flashsmith.emulator.machine.emit import Emitter
    from flashsmith.emulator.machine.unit import Unit

# PTX ISA, "membar, fence"
_PROXY_FENCE = re.compile(
    r"proxy\.async(\.global|\.shared::cta|\.shared::cluster)?"
    r"|proxy\.async::generic\.(acquire|release)\.sync_restrict::shared::(cta|cluster)\.cluster"
)
_OTHER_PROXY = re.compile(
    r"proxy\.alias|proxy\.tensormap::generic\.(acquire|release)\.(cta|cluster|gpu|sys)"
)
_THREAD_FENCE = re.compile(
    r"((sc|acq_rel|acquire|release)\.)?(cta|cluster|gpu|sys)"
    r"|(acquire|release)\.sync_restrict::shared::(cta|cluster)\.cluster"
)
MAX_REGISTERS = 256


@opcode("mapa", counts_as="integer")
def mapa(e: Emitter, i: Instruction) -> None:
    """The address of a shared variable of another cta of the cluster."""
    if i.type != "u32":
        raise Unknown("mapa of generic addresses")
    address, rank = e.read(i.operands[1], "u32"), e.read(i.operands[2], "u32")
    e.write(i.operands[0], f"({address} | ({rank} + U32(1) << U32({RANK_SHIFT})))", "u32")


@opcode("elect", counts_as="other")
def elect(e: Emitter, i: Instruction) -> None:
    """The lowest active lane of the member mask is elected."""
    pair = i.operands[0]
    if not isinstance(pair, Pair):
        raise Unknown("elect without a predicate")
    leader = e.assign(f"{e.use(_leader)}(u, m, {e.read(i.operands[1], 'u32')})")
    e.write(pair.first, leader, "u32")
    e.write(pair.second, f"{e.use(_is_leader)}(u, {leader})", "pred")


def _leader(u: Unit, m: Mask, members: Value) -> NDArray[np.uint32]:
    chosen = (u.array(members).reshape(-1, 32)[:, :1] >> LANES.astype(np.uint32) & 1).astype(bool)
    if m is not None:
        chosen &= m.reshape(-1, 32)
    return np.repeat(chosen.argmax(axis=1).astype(np.uint32), 32)


def _is_leader(u: Unit, leader: NDArray[np.uint32]) -> NDArray[np.bool_]:
    return np.asarray(np.tile(LANES, u.pairs) == leader)


@opcode("fence", writes=0, counts_as="fence")
def fence(e: Emitter, i: Instruction) -> None:
    """fence: of threads, of the asynchronous proxy, of mbarrier.init."""
    form = ".".join(i.modifiers)
    if form == "mbarrier_init.release.cluster":
        with e.active() as mask:
            e.do(f"{e.use(_fence_inits)}(c, u, {mask})")
    elif _PROXY_FENCE.fullmatch(form):
        with e.active() as mask:
            if not i.has("global"):
                e.do(f"{e.use(_fence_proxy)}(c, u, {mask})")
            if form in ("proxy.async", "proxy.async.global"):
                e.do(f"{e.use(at_proxy_fence)}(c, u, {mask})")
    elif _THREAD_FENCE.fullmatch(form):
        emit_thread_fence(e, i)
    elif not _OTHER_PROXY.fullmatch(form):
        raise Unknown("this form of fence")


def _fence_inits(c: Chunk, u: Unit, m: Mask) -> None:
    pairs = u.pairs_of(m)
    AsyncState.of(c).fence_inits(u.cta[pairs], u.warp[pairs])


def _fence_proxy(c: Chunk, u: Unit, m: Mask) -> None:
    """What the warp knows of generic writes, copies and wgmma issued from here on know too."""
    _fence_inits(c, u, m)
    pairs = u.pairs_of(m)
    cta, warp = u.cta[pairs], u.warp[pairs]
    fenced = slice(c.fenced_column, c.fenced_column + c.warps)
    c.known[cta, warp, fenced] = np.maximum(
        c.known[cta, warp, fenced], c.clock_rows(u)[pairs, : c.warps]
    )


# -- setmaxnreg -----------------------------------------------------------------------------------


class RegisterPool:
    """Registers of each cta that no warp holds; `held` is a thread's count, by warp."""

    def __init__(self, c: Chunk) -> None:
        self.launch = launch = most_registers(c.kernel, c.threads)
        self.held = np.full((len(c.ctas), c.warps), launch, np.int64)
        self.free = np.zeros(len(c.ctas), np.int64)
        c.on_start.append(self._started)

    def _started(self, slots: NDArray[np.intp]) -> None:
        self.held[slots] = self.launch
        self.free[slots] = 0

    @staticmethod
    def of(c: Chunk) -> RegisterPool:
        """The pool of a chunk."""
        found = c.state.setdefault("registers", None) or RegisterPool(c)
        c.state["registers"] = found
        assert isinstance(found, RegisterPool)
        return found


@opcode(
    "setmaxnreg",
    writes=0,
    cuts=lambda i: "after" if i.has("inc") else "",
    counts_as="other",
)
def setmaxnreg(e: Emitter, i: Instruction) -> None:
    """Gives registers back, or waits until the cta's pool has enough."""
    count = _count(i)
    if count % 8 or not 24 <= count <= MAX_REGISTERS:
        raise Unknown("a count that is not a multiple of 8 from 24 to 256")
    name = e.use(_increase if i.has("inc") else _decrease)
    with e.active() as mask:
        e.do(f"{name}(c, u, {mask}, {e.index}, {count})")


def _count(i: Instruction) -> int:
    count = i.operands[0]
    return count.value if isinstance(count, Imm) else 0


def _require_whole(c: Chunk, u: Unit, m: Mask, index: int) -> None:
    if m is not None:
        c.fault("divergence", "all threads of the warpgroup must run it", index, u)


def _decrease(c: Chunk, u: Unit, m: Mask, index: int, count: int) -> None:
    _require_whole(c, u, m, index)
    pool = RegisterPool.of(c)
    held = pool.held[u.cta, u.warp]
    if (held < count).any():
        pair = int((held < count).argmax())
        message = f"dec to {count} registers, but the warp holds {int(held[pair])} a thread"
        c.fault("setmaxnreg", message, index, u, lane=32 * pair)
    np.add.at(pool.free, u.cta, held - count)
    pool.held[u.cta, u.warp] = count


def _increase(c: Chunk, u: Unit, m: Mask, index: int, count: int) -> None:
    _require_whole(c, u, m, index)
    pool = RegisterPool.of(c)
    held = pool.held[u.cta, u.warp]
    if (held > count).any():
        pair = int((held > count).argmax())
        message = f"inc to {count} registers, but the warp holds {int(held[pair])} a thread"
        c.fault("setmaxnreg", message, index, u, lane=32 * pair)
    u.wait = PoolWait(pool, u.cta, u.warp, count)


class PoolWait(Wait):
    """Warps that wait until their cta has enough free registers."""

    def __init__(
        self, pool: RegisterPool, cta: NDArray[np.intp], warp: NDArray[np.intp], count: int
    ) -> None:
        self.pool, self.cta, self.warp, self.count = pool, cta, warp, count

    def ready(self) -> NDArray[np.bool_]:
        """Hands out what there is, warp by warp."""
        pool = self.pool
        short = self.count - pool.held[self.cta, self.warp]
        for pair in np.flatnonzero(short > 0):
            cta = self.cta[pair]
            if pool.free[cta] >= short[pair]:
                pool.free[cta] -= short[pair]
                pool.held[cta, self.warp[pair]] = self.count
        return np.asarray(pool.held[self.cta, self.warp] == self.count)

    def finish(self, _: Unit) -> None:
        """The registers were taken in `ready`."""

    def describe(self, pair: int) -> str:
        """How many registers are missing."""
        cta, warp = self.cta[pair], self.warp[pair]
        short = self.count - int(self.pool.held[cta, warp])
        return (
            f"setmaxnreg.inc {self.count} needs {short} registers a thread more, the block's pool "
            f"has {int(self.pool.free[cta])}"
        )

    def select(self, pairs: NDArray[np.intp]) -> PoolWait:
        """The same wait for some pairs."""
        return PoolWait(self.pool, self.cta[pairs], self.warp[pairs], self.count)
