"""Checks of shared memory that copies and wgmma touch: order, flight, and the proxy fence.

Entries are transfers or operands: one pair of cta and warp each, with a row of the 16-byte
chunks it touches (byte offsets into the chunk's shared memory).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from flashsmith.emulator.checks.shadow import (
    AGENT_BITS,
    AGENT_MASK,
    BEING_READ,
    IN_FLIGHT,
    NEVER,
    Shadow,
    still_read_by,
)
from flashsmith.emulator.copies.async_state import seen_from
from flashsmith.emulator.copies.mbarrier import Ints
from flashsmith.emulator.copies.smem_layout import CHUNK_BYTES

if TYPE_CHECKING:
    from flashsmith.emulator.machine.chunk import Chunk
    from flashsmith.emulator.machine.unit import Unit

ALWAYS = 1 << 40  # later than any time


@dataclass(frozen=True, slots=True)
class Access:
    """What one instruction touches; `lane` is the position in the unit that stands for an entry."""

    chunk: Chunk
    unit: Unit
    index: int
    cta: Ints  # of the warp that issues
    warp: Ints
    lane: Ints
    offsets: Ints  # (entries, 16-byte chunks)

    @property
    def target(self) -> Ints:
        """The cta whose memory each entry touches."""
        touched: Ints = self.offsets[:, 0] // self.chunk.pitch
        return touched

    @property
    def places(self) -> Ints:
        """The 16-byte chunks as rows of the shadow arrays: (entries, chunks)."""
        return self.offsets // CHUNK_BYTES

    @property
    def clocks(self) -> Ints:
        """What the entries' warps know, in the columns of the ctas they touch."""
        rows = self.chunk.known[self.cta, self.warp]
        away = self.target != self.cta
        if away.any():
            turned = seen_from(self.chunk, rows[away], self.cta[away], self.target[away])
            turned[:, self.chunk.warps : self.chunk.peer_column] = ALWAYS  # not known, not judged
            rows[away] = turned
        return rows

    def fault(self, at: int, wide: int, kind: str, message: str, other: str) -> NoReturn:
        """Raises a fault at a flat position of the grains."""
        entry, column = divmod(at, wide)
        per_chunk = wide // self.offsets.shape[1]
        address = int(self.offsets[entry, column // per_chunk]) % self.chunk.pitch
        self.chunk.fault(
            kind, message, self.index, self.unit, lane=int(self.lane[entry]), address=address,
            other=other,
        )  # fmt: skip

    def known(self, agents: Ints) -> Ints:
        """Up to when the entries' warps know the events of `agents` (one a grain)."""
        picked: Ints = np.take_along_axis(self.clocks, agents, axis=1)
        return picked


def rows_of(shadow: Shadow, array: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """A shadow array with a row for each 16 bytes of shared memory."""
    return array.reshape(-1, CHUNK_BYTES // shadow.grain)


def tags_of(chunk: Chunk, places: Ints) -> NDArray[np.uint32]:
    """The tags of 16-byte chunks, side by side: a row of grains for each row of places."""
    assert chunk.shadow is not None
    return chunk.shadow.tags.view(_element(chunk.shadow.grain)).take(places).view(np.uint32)


def copies_of(chunk: Chunk, tags: NDArray[np.uint32]) -> tuple[Ints, Ints] | None:
    """The agent whose copies wrote each row of tags, and when the last came; None if others did."""
    latest = tags.max(axis=1)
    agent = (latest & np.uint32(AGENT_MASK)).astype(np.int64)
    if int(agent.min()) < chunk.warps or int(agent.max()) >= chunk.fenced_column:
        return None
    # Of one moment are of one agent; else all of them are looked at.
    if (tags.min(axis=1) != latest).any() and (
        (tags ^ latest[:, None]) & np.uint32(AGENT_MASK)
    ).any():
        return None
    return agent, (latest >> np.uint32(AGENT_BITS)).astype(np.int64)


def landed_together(chunk: Chunk, unit: Unit, places: Ints) -> bool:
    """Whether each pair reads what one agent's copies wrote, and its warp knows of them all.

    `places` are of its own cta, a row for each pair or one for neighbours that read the same.
    """
    found = copies_of(chunk, tags_of(chunk, places))
    if found is None:
        return False
    agent, latest = found
    if len(places) != unit.pairs:
        sharers = unit.pairs // len(places)
        agent, latest = np.repeat(agent, sharers), np.repeat(latest, sharers)
    return bool((latest <= chunk.known[unit.cta, unit.warp, agent]).all())


def _landed_together(access: Access, tags: NDArray[np.uint32]) -> bool:
    """As `landed_together`, of entries that may lie in other ctas."""
    found = copies_of(access.chunk, tags)
    return found is not None and bool((found[1] <= access.known(found[0][:, None])[:, 0]).all())


def check_read(access: Access) -> Ints:
    """Checks what the asynchronous proxy is about to read; returns its places."""
    places, unwritten = check_operand(access)
    if unwritten is not None:
        message = "reads shared memory that nothing has written"
        at, wide = int(unwritten.argmax()), unwritten.shape[1]
        access.fault(at, wide, "uninitialised", message, "")
    return places


def check_operand(access: Access) -> tuple[Ints, NDArray[np.bool_] | None]:
    """As `check_read`, of what may be unwritten: also which grains are, or None for none."""
    places = access.places
    tags = tags_of(access.chunk, places)
    if _landed_together(access, tags):
        return places, None
    return places, look_closely(access, tags)


def look_closely(access: Access, tags: NDArray[np.uint32]) -> NDArray[np.bool_] | None:
    """Checks each grain that is about to be read; returns which are unwritten, None for none."""
    chunk = access.chunk
    wide, unwritten = tags.shape[1], None
    if int(tags.max(initial=0)) >= IN_FLIGHT:
        unwritten = tags == NEVER
        tags = np.where(unwritten, np.uint32(0), tags)
        flying = tags >= IN_FLIGHT
        if flying.any():
            message = "reads shared memory that a copy has not reached yet"
            at = int(flying.argmax())
            access.fault(at, wide, "in flight", message, "the copy, not waited for")
    agents, times = _split(tags)
    _raise_first(
        access, times > access.known(agents), wide, agents, times,
        "race", "reads what nothing orders before this instruction",
    )  # fmt: skip
    by_warp = agents < chunk.warps
    if by_warp.any():
        columns = np.where(by_warp, chunk.fenced_column + agents, 0)
        hidden = by_warp & (times > access.known(columns))
        _raise_first(
            access, hidden, wide, agents, times,
            "missing proxy fence", "reads ordinary writes that no fence.proxy.async has published",
        )  # fmt: skip
    return unwritten


def check_write(access: Access) -> Ints:
    """Checks what a copy is about to overwrite; returns its places."""
    chunk = access.chunk
    assert chunk.shadow is not None
    places = access.places
    tags = rows_of(chunk.shadow, chunk.shadow.tags).take(places, axis=0)
    tags = tags.reshape(len(places), -1)
    wide = tags.shape[1]
    flying = (tags >= IN_FLIGHT) & (tags != NEVER)
    if flying.any():
        at = int(flying.argmax())
        access.fault(at, wide, "in flight", "overwrites what another copy still writes", "")
    agents, times = _split(np.where(tags == NEVER, 0, tags))
    _raise_first(
        access, times > access.known(agents), wide, agents, times,
        "race", "overwrites what another wrote, and nothing orders the two",
    )  # fmt: skip
    clocks = access.clocks
    for reader in range(chunk.warps):
        seen = rows_of(chunk.shadow, chunk.shadow.reads[reader]).take(places, axis=0)
        seen = seen.reshape(len(places), -1)
        late = (seen > clocks[:, reader : reader + 1]) | (seen == BEING_READ)
        if late.any():
            _report_reader(access, reader, seen, late, wide)
    return places


def _report_reader(
    access: Access, reader: int, seen: NDArray[np.uint32], late: NDArray[np.bool_], wide: int
) -> None:
    at = int(late.argmax())
    time = int(seen.reshape(-1)[at])
    if time == BEING_READ:
        access.fault(at, wide, *still_read_by(reader))
    message = "overwrites what another reads, and nothing orders the two"
    access.fault(at, wide, "race", message, f"read by {access.chunk.party(reader, time)}")


def _split(tags: NDArray[np.uint32]) -> tuple[Ints, Ints]:
    agents = (tags & np.uint32(AGENT_MASK)).astype(np.int64)
    return agents, (tags >> np.uint32(AGENT_BITS)).astype(np.int64)


def _raise_first(
    access: Access,
    bad: NDArray[np.bool_],
    wide: int,
    agents: Ints,
    times: Ints,
    kind: str,
    message: str,
) -> None:
    if bad.any():
        at = int(bad.argmax())
        agent, time = int(agents.reshape(-1)[at]), int(times.reshape(-1)[at])
        access.fault(at, wide, kind, message, f"written by {access.chunk.party(agent, time)}")


@dataclass(slots=True)
class Reading:
    """Operations of one group that still read: entries by pair, with rows of marks."""

    cta: Ints
    warp: Ints
    group: Ints
    marks: list[Ints]  # one a begin
    warps: frozenset[int]

    def of(self, some: NDArray[np.bool_]) -> Reading:
        """Some of the entries."""
        warp = self.warp[some]
        marks = [part[some] for part in self.marks]
        return Reading(self.cta[some], warp, self.group[some], marks, frozenset(warp.tolist()))


class Readers:
    """Operations that still read shared memory; its places are marked until the wait."""

    def __init__(self, chunk: Chunk) -> None:
        self.chunk = chunk
        self.pending: list[Reading] = []
        if chunk.shadow is not None:
            # Times of reading, warp by warp: one element for each 16 bytes of shared memory.
            self._rows = chunk.shadow.reads.view(_element(chunk.shadow.grain)).reshape(-1)
            self._still = self._time(BEING_READ)

    def begin(
        self,
        cta: Ints,
        warp: Ints,
        group: Ints,
        places: Ints,
        unwritten: NDArray[np.bool_] | None = None,
        marks: Ints | None = None,
    ) -> None:
        """Marks places as being read by operations of a group.

        What nothing has written is not read: it gives no value that a later write could spoil.
        `marks` are `marks_of` warps and places, where they are known.
        """
        if unwritten is not None and unwritten.any():
            held = ~np.asarray(unwritten.reshape(*places.shape, -1).all(axis=2))
            some = np.asarray(held.any(axis=1))
            first = np.take_along_axis(places, held.argmax(axis=1)[:, None], axis=1)
            places, marks = np.where(held, places, first)[some], None
            cta, warp, group = cta[some], warp[some], group[some]
        if marks is None:
            marks = self.marks_of(warp, places)
        last = self.pending[-1] if self.pending else None
        if last is not None and last.cta is cta and last.warp is warp:
            if (last.group == group).all():
                last.marks.append(marks)
            else:
                self.pending.append(Reading(cta, warp, group, [marks], last.warps))
        else:
            self.pending.append(Reading(cta, warp, group, [marks], frozenset(warp.tolist())))
        self._rows[marks] = self._still

    def marks_of(self, warp: Ints, places: Ints) -> Ints:
        """Where `_rows` notes that warps read places."""
        marks: Ints = warp[:, None] * (self._rows.size // self.chunk.warps) + places
        return marks

    def drop(self, slots: NDArray[np.intp]) -> None:
        """Forgets what ctas in these slots began: they have ended."""
        going = [~np.isin(entry.cta, slots) for entry in self.pending]
        self.pending = [
            entry.of(some) for entry, some in zip(self.pending, going, strict=True) if some.any()
        ]

    def end(self, is_over: Callable[[Ints, Ints, Ints], NDArray[np.bool_]], index: int) -> None:
        """Ends the operations that `is_over(cta, warp, group)` names: read, as of now."""
        now, rows = self._time(self.chunk.tick(index)), self._rows
        kept: list[Reading] = []
        ended: set[int] = set()  # warps
        for entry in self.pending:
            over = is_over(entry.cta, entry.warp, entry.group)
            count = np.count_nonzero(over)
            if not count:
                kept.append(entry)
                continue
            done = entry if count == len(over) else entry.of(over)
            ended |= done.warps
            for marks in done.marks:
                rows[marks] = now
            if done is not entry:
                kept.append(entry.of(~over))
        self.pending = kept
        for entry in kept:  # what is read twice stays read
            for marks in entry.marks if not ended.isdisjoint(entry.warps) else ():
                rows[marks] = self._still

    def _time(self, time: int) -> NDArray[Any]:
        """A time as an element of `_rows`."""
        assert self.chunk.shadow is not None
        grain = self.chunk.shadow.grain
        return np.full(CHUNK_BYTES // grain, time, np.uint32).view(_element(grain))


def _element(grain: int) -> np.dtype[Any]:
    """What holds the times of 16 bytes: the bits count, not the number."""
    return np.dtype(np.complex128 if grain == 4 else (np.void, 4 * CHUNK_BYTES // grain))
