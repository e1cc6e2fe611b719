"""What warps know of other ctas' events, through flags in global memory.

PTX ISA, "Release and Acquire Patterns": a release (or a fence before a strong write) of a flag
hands on what its thread knows; an acquire (or a strong read before a fence) of it takes that over.
Kept warp by warp, in columns of `Chunk.known`: up to when an event of each warp of each slot is
known, and up to when a fence.proxy.async lies between the event and here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from flashsmith.emulator.machine.address_space import PARAM_WINDOW
from flashsmith.emulator.machine.values import distinct

if TYPE_CHECKING:
    from flashsmith.emulator.machine.chunk import Chunk
    from flashsmith.emulator.machine.unit import Unit

Row = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Flag:
    """What the last release of a location hands on; `slot` when to its own cta only."""

    row: Row
    slot: int | None = None


class GlobalClocks:
    """Flags, and what each warp has published or only seen so far."""

    def __init__(self, chunk: Chunk) -> None:
        slots, warps = chunk.known.shape[:2]
        self.chunk = chunk
        self.first = chunk.flag_column
        self.count = slots * warps
        self.flags: dict[int, Flag] = {}
        self.published = np.zeros((slots, warps, 2 * self.count), np.int64)  # by a release fence
        self.seen = np.zeros_like(self.published)  # by relaxed reads, for an acquire fence
        chunk.on_start.append(self._started)

    def _started(self, slots: NDArray[np.intp]) -> None:
        self.published[slots] = 0
        self.seen[slots] = 0

    def row(self, slot: int, warp: int) -> Row:
        """What a warp knows now, its own past included."""
        known, warps = self.chunk.known[slot, warp], self.chunk.warps
        row: Row = known[self.first :].copy()
        own = row[slot * warps : (slot + 1) * warps]
        np.maximum(own, known[:warps], out=own)
        own[warp] = self.chunk.time
        return row

    def knows(self, slot: int, warp: int, other_slot: int, other_warp: int, fenced: bool) -> int:
        """Up to when a warp knows the events of a warp of another cta."""
        column = self.first + self.count * fenced + other_slot * self.chunk.warps + other_warp
        return int(self.chunk.known[slot, warp, column])

    def _learn(self, slot: int, warp: int, row: Row) -> None:
        chunk = self.chunk
        known = chunk.known[slot, warp]
        np.maximum(known[self.first :], row, out=known[self.first :])
        own = known[: chunk.warps]
        np.maximum(own, row[slot * chunk.warps : (slot + 1) * chunk.warps], out=own)
        chunk.known_version += 1

    # -- what instructions do -------------------------------------------------------------------

    def fence(self, slot: int, warp: int, *, acquires: bool, releases: bool) -> None:
        """A fence of the whole GPU: what was seen is known, what is known is published."""
        if acquires:
            self._learn(slot, warp, self.seen[slot, warp])
        if releases:
            self.published[slot, warp] = self.row(slot, warp)

    def proxy_fence(self, slot: int, warp: int) -> None:
        """What the warp knows, copies issued from here on know too."""
        fenced = self.chunk.known[slot, warp, self.first + self.count :]
        np.maximum(fenced, self.row(slot, warp)[: self.count], out=fenced)

    def read(self, slot: int, warp: int, address: int, *, acquires: bool, narrow: bool) -> None:
        """A strong read of a flag; `narrow` scopes end at the cta."""
        flag = self.flags.get(address)
        if flag is None or (flag.slot not in (None, slot)) or (narrow and flag.slot != slot):
            return
        if acquires:
            self._learn(slot, warp, flag.row)
        else:
            np.maximum(self.seen[slot, warp], flag.row, out=self.seen[slot, warp])

    def write(
        self, slot: int, warp: int, address: int, *, releases: bool, narrow: bool, chained: bool
    ) -> None:
        """A strong write of a flag; a `chained` one (an atomic) hands on the one before too."""
        row = self.row(slot, warp) if releases else self.published[slot, warp].copy()
        before = self.flags.get(address) if chained else None
        if before is not None and before.slot in (None, slot):
            row = np.maximum(row, before.row)
        self.flags[address] = Flag(row, slot if narrow else None)


def at_flags(
    c: Chunk,
    u: Unit,
    m: NDArray[np.bool_] | None,
    address: NDArray[np.uint64],
    sem: str,
    scope: str,
    kind: str,  # "ld", "st", "atom" or "red"
) -> None:
    """Tells the clocks of strong accesses; of each warp, one lane an address."""
    clocks = c.clocks
    if clocks is None:
        return
    lanes = np.arange(32 * u.pairs) if m is None else np.flatnonzero(m)
    places = distinct(lanes // 32, u.array(address)[lanes].astype(np.int64))
    acquires, releases = sem in ("acquire", "acq_rel"), sem in ("release", "acq_rel")
    for pair, at in places.T.tolist():
        slot, warp = int(u.cta[pair]), int(u.warp[pair])
        if at >= PARAM_WINDOW:
            continue  # shared or local memory by a generic address
        if kind in ("ld", "atom"):  # a red reads too, but that is no acquire pattern
            clocks.read(slot, warp, at, acquires=acquires, narrow=scope == "cta")
        if kind != "ld":
            clocks.write(
                slot, warp, at, releases=releases, narrow=scope == "cta",
                chained=kind in ("atom", "red"),
            )  # fmt: skip


def at_fence(
    c: Chunk, u: Unit, m: NDArray[np.bool_] | None, acquires: bool, releases: bool
) -> None:
    """A fence of .gpu or .sys scope."""
    if c.clocks is not None:
        for pair in u.pairs_of(m).tolist():
            slot, warp = int(u.cta[pair]), int(u.warp[pair])
            c.clocks.fence(slot, warp, acquires=acquires, releases=releases)


def at_proxy_fence(c: Chunk, u: Unit, m: NDArray[np.bool_] | None) -> None:
    """fence.proxy.async that covers global memory."""
    if c.clocks is not None:
        for pair in u.pairs_of(m).tolist():
            c.clocks.proxy_fence(int(u.cta[pair]), int(u.warp[pair]))
