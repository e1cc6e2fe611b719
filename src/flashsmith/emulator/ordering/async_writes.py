"""Who wrote global memory by bulk copies and reductions, and who may touch it after that.

PTX ISA, "cp.async.bulk.wait_group": the writes are visible to the thread that waited. Others
know of them by synchronisation with it (barriers, or a release and an acquire of a flag). A copy
of another cta that touches the same bytes needs a fence.proxy.async on that way as well:
"Causality Order" keeps accesses of one proxy in order inside one cta only. Reductions are
atomic: among themselves they need no order, unless the options ask for one, as a kernel does that
gives the same bits every time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from flashsmith.emulator.copies.smem_layout import CHUNK_BYTES

if TYPE_CHECKING:
    from flashsmith.emulator.machine.chunk import Chunk
    from flashsmith.emulator.machine.unit import Unit

Cells = NDArray[np.int64]
NOT_WAITED = 1 << 41  # later than all that anybody knows


@dataclass(slots=True, eq=False)
class Write:
    """One transfer into global memory."""

    index: int  # of the instruction
    cta: int  # its number in the grid
    slot: int
    warp: int
    adds: bool
    under: tuple[Write, ...]  # earlier sums of the same bytes that this one need not know
    base: tuple[Write, ...]  # copies below the sums, which every later one must know
    time: int = NOT_WAITED  # when its thread had waited for it


class AsyncWrites:
    """The last write of every 16 bytes of global memory, of one chunk of ctas."""

    def __init__(self, chunk: Chunk) -> None:
        self.chunk = chunk
        self.last = np.zeros(chunk.memory.u8.size // CHUNK_BYTES + 1, np.int32)
        self.writes: list[Write] = []

    # -- accesses -------------------------------------------------------------------------------

    def touch(
        self, u: Unit, lanes: NDArray[np.intp] | None, cells: NDArray[Any], n_bytes: int, index: int
    ) -> None:
        """Ordinary loads, stores and atomics of lanes, at cells of `n_bytes`."""
        ids = self.last[cells * n_bytes // CHUNK_BYTES]
        if not ids.any():
            return
        lanes = np.arange(32 * u.pairs) if lanes is None else lanes
        for at in np.flatnonzero(ids).tolist():
            lane = int(lanes[at])
            self._require(u, lane, self.writes[int(ids[at]) - 1], index, by_copy=False)

    def overwritten(self, cells: NDArray[Any], n_bytes: int) -> None:
        """Ordinary stores have replaced what copies wrote there."""
        self.last[cells * n_bytes // CHUNK_BYTES] = 0

    def read(self, u: Unit, lane: int, cells: Cells, index: int) -> None:
        """A copy reads 16-byte cells."""
        for number in np.unique(self.last[cells]).tolist():
            if number:
                self._require(u, lane, self.writes[number - 1], index, by_copy=True)

    def write(self, u: Unit, lane: int, cells: Cells, index: int, *, adds: bool) -> Write:
        """A copy or reduction is about to write 16-byte cells."""
        slot, warp = int(u.cta[lane // 32]), int(u.warp[lane // 32])
        under: list[Write] = []
        base: list[Write] = []
        for number in np.unique(self.last[cells]).tolist():
            if not number:
                continue
            before = self.writes[number - 1]
            if not (adds and before.adds) or self.chunk.options.ordered_sums:
                self._require(u, lane, before, index, by_copy=True)
                base += [before] * adds
                continue
            for copy in before.base:
                self._require_one(u, lane, copy, index, by_copy=True)
            base += before.base
            if before.under or self._gap(u, lane, before, by_copy=True):
                under.append(before)
        cta = int(self.chunk.ctas[slot])
        write = Write(index, cta, slot, warp, adds, tuple(under), tuple(base))
        self.writes.append(write)
        self.last[cells] = len(self.writes)
        return write

    # -- judgement ------------------------------------------------------------------------------

    def _require(self, u: Unit, lane: int, write: Write, index: int, *, by_copy: bool) -> None:
        for one in _all_under(write):
            self._require_one(u, lane, one, index, by_copy=by_copy)

    def _require_one(self, u: Unit, lane: int, write: Write, index: int, *, by_copy: bool) -> None:
        gap = self._gap(u, lane, write, by_copy)
        if gap:
            self._report(u, lane, write, index, gap)

    def _gap(self, u: Unit, lane: int, write: Write, by_copy: bool) -> str:
        """What is missing between a write and an access by a lane; nothing when it is ordered."""
        chunk = self.chunk
        slot, warp = int(u.cta[lane // 32]), int(u.warp[lane // 32])
        if write.slot == slot and write.cta == int(chunk.ctas[slot]):
            late = write.time > int(chunk.known[slot, warp, write.warp])
            return ("wait" if write.time == NOT_WAITED else "barrier") if late else ""
        clocks = chunk.clocks
        if clocks is None or write.time > clocks.knows(slot, warp, write.slot, write.warp, False):
            return "wait" if write.time == NOT_WAITED else "flag"
        if by_copy and write.time > clocks.knows(slot, warp, write.slot, write.warp, True):
            return "fence"
        return ""

    def _report(self, u: Unit, lane: int, write: Write, index: int, gap: str) -> NoReturn:
        kinds = {
            "wait": ("in flight", "no cp.async.bulk.wait_group of its thread has ended"),
            "barrier": ("race", "nothing orders its wait_group before this"),
            "flag": ("race", "no release and acquire order its wait_group before this"),
            "fence": (
                "missing proxy fence",
                "no fence.proxy.async stands between its wait_group and this copy",
            ),
        }
        kind, missing = kinds[gap]
        what = "reduction" if write.adds else "copy"
        message = f"touches global memory that a bulk {what} writes, and {missing}"
        line = self.chunk.kernel.instructions[write.index].line
        other = (
            f"the {what} at PTX line {line} of block {self.chunk.cta_index_of(write.cta)} "
            f"warp {write.warp}"
        )
        self.chunk.fault(kind, message, index, u, lane=lane, other=other)


def _all_under(write: Write) -> list[Write]:
    """A write and those it was laid over without knowing them."""
    found, todo, seen = [], [write], {id(write)}
    while todo:
        one = todo.pop()
        found.append(one)
        for below in one.under:
            if id(below) not in seen:
                seen.add(id(below))
                todo.append(below)
    return found
