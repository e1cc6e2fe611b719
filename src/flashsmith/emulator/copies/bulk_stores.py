"""Bulk copies and reductions from shared into global memory, in groups of a thread."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from flashsmith.emulator.checks.async_shadow import Access, Readers, check_read
from flashsmith.emulator.copies.async_state import Mask, active_lanes, at_lanes
from flashsmith.emulator.copies.bulk_places import check_smem, global_chunks, transfer_places
from flashsmith.emulator.copies.mbarrier import Ints
from flashsmith.emulator.copies.smem_layout import CHUNK_BYTES
from flashsmith.emulator.copies.transfers import StoreFlight, StoreWait, smem_chunks
from flashsmith.emulator.machine.values import Value

if TYPE_CHECKING:
    from flashsmith.emulator.machine.chunk import Chunk
    from flashsmith.emulator.machine.unit import Unit


class BulkGroups:
    """Groups of each thread: how many were committed, what flies, what still reads."""

    def __init__(self, c: Chunk) -> None:
        self.chunk = c
        self.committed = np.zeros(len(c.ctas) * c.warps * 32, np.int64)
        self.flights: list[StoreFlight] = []
        self.unseen: list[StoreFlight] = []  # those whose writes their threads do not know yet
        self.readers = Readers(c)
        c.on_exit.append(self._exited)
        c.on_start.append(self.readers.drop)

    @staticmethod
    def of(c: Chunk) -> BulkGroups:
        """The groups of a chunk."""
        found = c.state.get("bulk groups")
        if found is None:
            found = c.state["bulk groups"] = BulkGroups(c)
        assert isinstance(found, BulkGroups)
        return found

    def _exited(self, u: Unit) -> None:
        """Shared memory goes with the cta, so a thread may not end before its stores are read."""
        if self.chunk.shadow is None:
            return
        lanes = active_lanes(u, u.mask)
        ending = _threads(self.chunk, u, lanes)
        for entry in self.readers.pending:
            thread = (entry.cta * self.chunk.warps + entry.warp) * 32 + entry.group % 32
            late = np.flatnonzero(np.isin(ending, thread))
            if len(late):
                index = self.flights[-1].index if self.flights else 0
                message = "the thread ends, but no wait_group says that its bulk store was read"
                self.chunk.fault("bulk store", message, index, u, lane=int(lanes[late[0]]))


def _threads(c: Chunk, u: Unit, lanes: NDArray[np.intp]) -> Ints:
    thread: Ints = (u.lane_cta[lanes] * c.warps + u.lane_warp[lanes]) * 32 + lanes % 32
    return thread


def start_store(
    c: Chunk, u: Unit, m: Mask, index: int, target: Value, size: Value, source: Value,
    operation: str, kind: str,
) -> None:  # fmt: skip
    """Starts copies or reductions into global memory."""
    lanes = active_lanes(u, m)
    groups = BulkGroups.of(c)
    for entries, place in transfer_places(c, u, index, lanes, target, size, is_store=True):
        mine = lanes[entries]
        address = at_lanes(source, mine)
        check_smem(c, u, index, mine, address, place)
        cta, warp = u.lane_cta[mine], u.lane_warp[mine]
        offsets = smem_chunks(c, cta, address, place)
        thread = _threads(c, u, mine)
        group = groups.committed[thread]
        if c.shadow is not None:
            # What lies outside the tensor is not stored: its place need not hold anything.
            inside = place.chunks_inside()
            first = np.take_along_axis(offsets, inside.argmax(axis=1)[:, None], axis=1)
            read, some = np.where(inside, offsets, first), inside.any(axis=1)
            access = Access(c, u, index, cta[some], warp[some], mine[some], read[some])
            # The key of a reader holds its lane: groups are a thread's own.
            key = (group * 32 + mine % 32)[some]
            groups.readers.begin(cta[some], warp[some], key, check_read(access))
        element = kind or (place.tensor.element_type if place.tensor else "")
        flight = StoreFlight(index, place, thread, group, offsets, operation, element)
        groups.flights.append(flight)
        c.flights.append(flight)
        if c.writes is not None or c.sums is not None:
            _watch(c, u, mine, flight)
            groups.unseen.append(flight)


def _watch(c: Chunk, u: Unit, lanes: NDArray[np.intp], flight: StoreFlight) -> None:
    """Tells those who judge the order in global memory what a flight is about to write."""
    for lane, cells in zip(lanes.tolist(), global_chunks(c, flight.place), strict=True):
        if c.writes is not None:
            adds = bool(flight.operation)
            flight.writes.append(c.writes.write(u, lane, cells, flight.index, adds=adds))
        if c.sums is not None:
            slot, warp = int(u.lane_cta[lane]), int(u.lane_warp[lane])
            c.sums.settle_before(slot, warp, cells, CHUNK_BYTES, by_copy=True)


def commit_stores(c: Chunk, u: Unit, m: Mask) -> None:
    """Closes the group of the stores that each thread started since its last commit."""
    groups = BulkGroups.of(c)
    groups.committed[_threads(c, u, active_lanes(u, m))] += 1


def _observe(c: Chunk, groups: BulkGroups, ends: Ints, index: int) -> None:
    """The threads know the writes of groups below `ends` from here on."""
    now = c.tick(index)
    kept = []
    for flight in groups.unseen:
        over = flight.group < ends[flight.thread]
        for transfer in np.flatnonzero(over).tolist():
            flight.observe(transfer, now)
        if not over.all():
            kept.append(flight)
    groups.unseen = kept


def wait_for_stores(
    c: Chunk, u: Unit, m: Mask, count: int, index: int, *, reads_only: bool
) -> None:
    """Waits until all but the newest `count` groups of each thread are over, or have been read."""
    groups = BulkGroups.of(c)
    lanes = active_lanes(u, m)
    thread = _threads(c, u, lanes)
    ends = np.full(len(groups.committed), -1, np.int64)
    ends[thread] = groups.committed[thread] - count
    position = np.full(len(groups.committed), -1, np.int64)
    position[thread] = lanes // 32
    if groups.unseen and not reads_only:
        _observe(c, groups, ends, index)
    waited: list[StoreFlight] = []
    pair_of: dict[int, NDArray[np.int64]] = {}
    for flight in groups.flights:
        if flight.landed or (reads_only and flight.raw is not None):
            continue
        mine = flight.group < ends[flight.thread]
        if mine.any():
            pair_of[len(waited)] = np.unique(position[flight.thread[mine]])
            waited.append(flight)
    groups.flights = [f for f in groups.flights if not f.landed]
    if c.shadow is not None and groups.readers.pending:
        groups.readers.end(
            lambda cta, warp, key: key // 32 < ends[(cta * c.warps + warp) * 32 + key % 32],
            index,
        )
    if waited:
        u.wait = StoreWait(waited, u.pairs, pair_of, reads_only=reads_only)
