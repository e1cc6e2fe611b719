"""bar.warp.sync: lanes wait for those their mask names, and are ordered with no others.

PTX ISA, "bar.warp.sync": a lane waits until all lanes of its mask have executed one with the same
mask, at this or another place of the program. A lane that its own mask does not name is undefined.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from flashsmith.emulator.machine.unit import Unit, Wait
from flashsmith.emulator.machine.values import Value

if TYPE_CHECKING:
    from flashsmith.emulator.machine.chunk import Chunk

ALL_LANES = 0xFFFFFFFF
LANE_BITS = np.uint32(1) << np.arange(32, dtype=np.uint32)
Rows = NDArray[np.bool_]  # a row of 32 lanes for each pair of cta and warp


class WarpBarriers:
    """Which lanes wait, with which mask; kept in `chunk.state["warp barriers"]`."""

    def __init__(self, chunk: Chunk) -> None:
        shape = (len(chunk.ctas), chunk.warps)
        self.chunk = chunk
        self.waiting = np.zeros((*shape, 32), np.uint32)  # mask of each waiting lane, or 0
        self.index = np.zeros(shape, np.int64)  # instruction where a lane last began to wait
        chunk.on_exit.append(self._exited)
        chunk.on_start.append(self._started)

    @staticmethod
    def of(chunk: Chunk) -> WarpBarriers:
        """The barriers of a chunk."""
        found = chunk.state.get("warp barriers")
        if found is None:
            found = chunk.state["warp barriers"] = WarpBarriers(chunk)
        assert isinstance(found, WarpBarriers)
        return found

    def _started(self, slots: NDArray[np.intp]) -> None:
        self.waiting[slots] = 0

    def arrive(self, unit: Unit, here: Rows, mask: NDArray[np.uint32], index: int) -> None:
        """Lanes `here` arrive, with one mask a pair; those that are not all there wait."""
        chunk, where = self.chunk, (unit.cta, unit.warp)
        named = (mask[:, None] & LANE_BITS) != 0
        alive = chunk.alive[where]
        ended = named & ~alive & chunk.first_alive[unit.warp]
        self._refuse(unit, here & ~named, mask, index, "does not name this lane, which runs it")
        self._refuse(unit, ended, mask, index, "names this lane, which has ended")
        apart = (named & alive & ~here).any(axis=1)
        _order(chunk, unit, named & alive, ~apart)
        if not apart.any():
            return
        rows = self.waiting[where]
        self._refuse_crossed(unit, rows, here, mask, named, index)
        self.waiting[where] = np.where(here & apart[:, None], mask[:, None], rows)
        self.index[where] = index
        full = ~((self.waiting[where] != mask[:, None]) & named & alive).any(axis=1) & apart
        _order(chunk, unit, named & alive, full)
        for pair in np.flatnonzero(full).tolist():
            self.waiting[unit.cta[pair], unit.warp[pair], named[pair] | here[pair]] = 0
        # A wait that is over at once lets those that were let go join in.
        unit.wait = WarpWait(self, unit.cta, unit.warp, here, mask, index)

    def _refuse(
        self, unit: Unit, bad: Rows, mask: NDArray[np.uint32], index: int, what: str
    ) -> None:
        if bad.any() and self.chunk.options.checks:
            lane = int(bad.reshape(-1).argmax())
            message = f"mask {int(mask[lane // 32]):#x} {what}"
            self.chunk.fault("bad member mask", message, index, unit, lane=lane)

    def _refuse_crossed(
        self,
        unit: Unit,
        rows: NDArray[np.uint32],
        here: Rows,
        mask: NDArray[np.uint32],
        named: Rows,
        index: int,
    ) -> None:
        """Two lanes that name each other with different masks wait for ever."""
        lanes = (here * LANE_BITS).sum(axis=1, dtype=np.uint32)
        crossed = named & (rows != 0) & (rows != mask[:, None]) & ((rows & lanes[:, None]) != 0)
        if crossed.any():
            at = int(crossed.reshape(-1).argmax())
            pair, other = divmod(at, 32)
            message = (
                f"mask {int(mask[pair]):#x} names lane {other}, which waits with mask "
                f"{int(rows[pair, other]):#x}"
            )
            lane = 32 * pair + int(here[pair].argmax())
            self.chunk.fault("bad member mask", message, index, unit, lane=lane)

    def _exited(self, unit: Unit) -> None:
        """A lane that ends can no longer come to where others wait for it."""
        if not self.chunk.options.checks:
            return
        lanes = np.ones((unit.pairs, 32), np.bool_)
        if unit.mask is not None:
            lanes = unit.mask.reshape(-1, 32)
        bits = (lanes * LANE_BITS).sum(axis=1, dtype=np.uint32)
        missed = (self.waiting[unit.cta, unit.warp] & bits[:, None]) != 0
        if missed.any():
            pair = int(missed.any(axis=1).argmax())
            waits = int(missed[pair].argmax())
            index = int(self.index[unit.cta[pair], unit.warp[pair]])
            lane = 32 * pair + int(lanes[pair].argmax())
            message = f"this lane ends, and lane {waits} waits for it"
            self.chunk.fault("bad member mask", message, index, unit, lane=lane)


def _order(chunk: Chunk, unit: Unit, met: Rows, pairs: NDArray[np.bool_]) -> None:
    """The lanes `met` of these pairs know from here on what the others of them did."""
    if not pairs.any():
        return
    whole = pairs & (met == chunk.alive[unit.cta, unit.warp]).all(axis=1)
    chunk.together[unit.cta[whole], unit.warp[whole]] = chunk.time
    for pair in np.flatnonzero(pairs & ~whole).tolist():
        known = chunk.lane_clocks()[unit.cta[pair], unit.warp[pair]]
        lanes = np.flatnonzero(met[pair])
        known[lanes] = known[lanes].max(axis=0)
        known[np.ix_(lanes, lanes)] = chunk.time
    chunk.known_version += 1


class WarpWait(Wait):
    """Lanes that wait for the others of their mask."""

    def __init__(
        self,
        barriers: WarpBarriers,
        cta: NDArray[np.intp],
        warp: NDArray[np.intp],
        here: Rows,
        mask: NDArray[np.uint32],
        index: int,
    ) -> None:
        self.barriers, self.cta, self.warp = barriers, cta, warp
        self.here, self.mask, self.index = here, mask, index

    def ready(self) -> NDArray[np.bool_]:
        """Which pairs' lanes have all been let go."""
        waiting = self.barriers.waiting[self.cta, self.warp] != 0
        return ~np.asarray((waiting & self.here).any(axis=1))

    def finish(self, unit: Unit) -> None:
        """The last lane to come has ordered them all."""

    def describe(self, pair: int) -> str:
        """The lanes that have not come with the same mask."""
        mask = self.mask[pair]
        rows = self.barriers.waiting[self.cta[pair], self.warp[pair]]
        alive = self.barriers.chunk.alive[self.cta[pair], self.warp[pair]]
        missing = np.flatnonzero(((mask & LANE_BITS) != 0) & alive & (rows != mask)).tolist()
        line = self.barriers.chunk.kernel.instructions[self.index].line
        return f"waits at PTX line {line} for lanes {missing} with mask {int(mask):#x}"

    def select(self, pairs: NDArray[np.intp]) -> WarpWait:
        """The same wait of some pairs."""
        return WarpWait(
            self.barriers, self.cta[pairs], self.warp[pairs], self.here[pairs], self.mask[pairs],
            self.index,
        )  # fmt: skip


def sync_lanes(c: Chunk, u: Unit, m: Value, members: Value, index: int, after: int) -> bool:
    """bar.warp.sync of the lanes `m`; true when lanes that do different things became units.

    These go on at `after`, the segment behind the instruction.
    """
    if m is None and u.mask is None and members.ndim == 0 and int(members) == ALL_LANES:
        c.meet(u)
        return False
    active = np.ones(32 * u.pairs, np.bool_) if m is None else m
    others = ~active if u.mask is None else u.mask & ~active
    masks = u.array(members)
    if others.any() or ((masks != _first_of(u, masks, active)) & active).any():
        for value in np.unique(masks[active]):
            _go_on(c, u, active & (masks == value), after, int(value), index)
        _go_on(c, u, others, after, 0, index)
        return True
    first = _first_of(u, masks, active)[::32]
    WarpBarriers.of(c).arrive(u, active.reshape(-1, 32), first, index)
    return False


def _first_of(u: Unit, masks: NDArray[np.uint32], active: NDArray[np.bool_]) -> NDArray[np.uint32]:
    """The mask of each warp's first active lane, in all its lanes."""
    first = active.reshape(-1, 32).argmax(axis=1)
    return np.repeat(masks.reshape(-1, 32)[np.arange(u.pairs), first], 32)


def _go_on(c: Chunk, u: Unit, lanes: NDArray[np.bool_], after: int, mask: int, index: int) -> None:
    """Makes a unit of some lanes, which have arrived with a mask (0: have not)."""
    part = u.fork(lanes, after, c.live[after] if after >= 0 else ())
    if part is None:
        return
    if mask:
        here = np.ones((part.pairs, 32), np.bool_)
        if part.mask is not None:
            here = part.mask.reshape(-1, 32)
        WarpBarriers.of(c).arrive(part, here, np.full(part.pairs, mask, np.uint32), index)
    if after >= 0:
        c.forks.append(part)
    else:
        c.exited(part)
