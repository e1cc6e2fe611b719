"""Bulk copies while they fly: what they move, and what happens when they land."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from flashsmith.emulator.checks.async_shadow import rows_of
from flashsmith.emulator.checks.shadow import AGENT_BITS
from flashsmith.emulator.copies.async_state import AsyncState
from flashsmith.emulator.copies.mbarrier import Ints
from flashsmith.emulator.copies.smem_layout import CHUNK_BYTES, swizzled
from flashsmith.emulator.copies.tensor_map import TensorMap, box_rows, element_view, row_elements
from flashsmith.emulator.machine.unit import Wait
from flashsmith.emulator.machine.values import NumpyArgument
from flashsmith.emulator.ordering.async_writes import NOT_WAITED
from flashsmith.emulator.ordering.sums import reduce_bf16
from flashsmith.emulator.ordering.traits import FLOATS

if TYPE_CHECKING:
    from flashsmith.emulator.machine.chunk import Chunk
    from flashsmith.emulator.machine.unit import Unit
    from flashsmith.emulator.ordering.async_writes import Write
    from flashsmith.emulator.ordering.sums import PendingSums, Sum

# numpy type and operation of the reductions of cp.reduce.async.bulk
TYPES = {
    "u32": "u4", "s32": "i4", "u64": "u8", "s64": "i8", "f16": "f2", "f32": "f4", "f64": "f8",
    "b32": "u4", "b64": "u8", "bf16": "bf16",
}  # fmt: skip
OPERATIONS: dict[str, np.ufunc] = {
    "add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and,
    "or": np.bitwise_or, "xor": np.bitwise_xor,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Place:
    """Where transfers lie in global memory: boxes of a tensor, or runs of bytes."""

    n_bytes: int  # of each transfer
    tensor: TensorMap | None
    start: Ints  # (transfers, rank): corners; or (transfers, 1): addresses
    is_store: bool = False

    def elements(self) -> tuple[Ints, NDArray[np.bool_], np.dtype[Any]]:
        """Addresses of the elements in the order of shared memory, which exist, their type."""
        if self.tensor is None:
            whole: Ints = self.start + np.arange(0, self.n_bytes, CHUNK_BYTES)
            return whole, np.ones(whole.shape, np.bool_), np.dtype(np.complex128)
        rows, inside = box_rows(self.tensor, self.start)
        columns = row_elements(self.tensor, self.start)
        size = self.tensor.element_bytes
        if self.is_store or columns.all():
            # A store writes a whole 16 bytes when a part of them lies in the tensor (H200).
            step, dtype = CHUNK_BYTES, np.dtype(np.complex128)
            parts = columns.reshape(len(columns), -1, CHUNK_BYTES // size)
            columns = np.asarray(parts.any(axis=2))
        else:
            step, dtype = size, element_view(self.tensor)
        at = rows[:, :, None] + np.arange(0, self.tensor.row_bytes, step)
        exists = inside[:, :, None] & columns[:, None, :]
        return at.reshape(len(rows), -1), exists.reshape(len(rows), -1), dtype

    def chunks_inside(self) -> NDArray[np.bool_]:
        """Which 16-byte chunks of the box hold elements of the tensor: (transfers, chunks)."""
        _, exists, dtype = self.elements()
        parts = exists.reshape(len(exists), -1, CHUNK_BYTES // dtype.itemsize)
        return np.asarray(parts.any(axis=2))

    def select(self, entries: NumpyArgument) -> Place:
        """Some of the transfers."""
        return replace(self, start=self.start[entries])


def smem_chunks(chunk: Chunk, cta: Ints, address: Ints, place: Place) -> Ints:
    """Byte offsets of the 16-byte chunks that transfers touch in shared memory, in order."""
    linear = address[:, None] + np.arange(0, place.n_bytes, CHUNK_BYTES)
    swizzle = place.tensor.swizzle_bytes if place.tensor is not None else 0
    physical: Ints = swizzled(linear, swizzle)
    return physical + (cta * chunk.pitch)[:, None]


@dataclass(slots=True)
class LoadFlight:
    """Copies into shared memory that complete bytes on mbarriers."""

    index: int
    place: Place
    cta: Ints  # where each transfer goes
    offsets: Ints  # its 16-byte chunks there
    barrier: Ints  # address of the barrier, in the same cta
    places: Ints | None  # its rows of the shadow, when checks are on

    def land(self, chunk: Chunk, *, whole: bool) -> bool:
        """The bytes arrive, then the barrier hears of them."""
        address, exists, dtype = self.place.elements()
        source = chunk.memory.u8.view(dtype)
        cells = np.where(exists, chunk.memory.offsets(address), 0) // dtype.itemsize
        if chunk.sums is not None:
            chunk.sums.settle(cells[exists], dtype.itemsize)
        values = source.take(cells)
        values[~exists] = 0
        raw = values.view(np.complex128).reshape(self.offsets.shape)
        chunk.shared_views[CHUNK_BYTES][self.offsets // CHUNK_BYTES] = raw
        state = AsyncState.of(chunk)
        column = state.barriers.find(self.cta, self.barrier)
        time = chunk.tick(self.index)
        agents = np.array([state.agent(int(c)) for c in column], np.int64)
        np.maximum.at(state.arrived, (self.cta, column, agents), time)
        if chunk.shadow is not None and self.places is not None:
            tags = (time << AGENT_BITS | agents).astype(np.uint32)
            rows_of(chunk.shadow, chunk.shadow.tags)[self.places] = tags[:, None, None]
        if chunk.counters is not None:
            chunk.counters.bytes["bulk load"] += self.place.n_bytes * len(self.cta)
        sizes = np.full(len(self.cta), self.place.n_bytes, np.int64)
        state.barriers.complete_tx(self.cta, self.barrier, sizes)
        return True


@dataclass(slots=True)
class StoreFlight:
    """Copies or reductions from shared into global memory, in bulk groups of threads.

    They are read first, and reach global memory then.
    """

    index: int
    place: Place
    thread: Ints  # (cta * warps + warp) * 32 + lane of whoever issued each transfer
    group: Ints
    offsets: Ints
    operation: str  # "" for a copy
    element_type: str
    writes: list[Write] = field(default_factory=list)  # a transfer each, where they are watched
    sums: dict[int, Sum] = field(default_factory=dict)  # those put off, by transfer
    raw: NDArray[Any] | None = None  # what was read
    landed: bool = False
    seen_at: dict[int, int] = field(default_factory=dict)  # when threads had waited, by transfer

    def land(self, chunk: Chunk, *, whole: bool) -> bool:
        """Takes the next step, or all of them; true when the bytes are in global memory."""
        if self.raw is None:
            self.raw = chunk.shared_views[CHUNK_BYTES].take(self.offsets // CHUNK_BYTES)
            if not whole:
                return False
        if self.operation:
            self._reduce(chunk, self.raw)
        else:
            address, exists, dtype = self.place.elements()
            cells = chunk.memory.offsets(address) // dtype.itemsize
            if chunk.sums is not None:
                chunk.sums.settle(cells[exists], dtype.itemsize)
            values = np.ascontiguousarray(self.raw).view(dtype).reshape(cells.shape)
            chunk.memory.u8.view(dtype)[cells[exists]] = values[exists]
        if chunk.counters is not None:
            chunk.counters.bytes["bulk store"] += self.place.n_bytes * len(self.thread)
        self.landed = True
        return True

    def observe(self, transfer: int, now: int) -> None:
        """The thread of a transfer knows from here on that it is over."""
        self.seen_at.setdefault(transfer, now)
        if self.writes:
            self.writes[transfer].time = min(self.writes[transfer].time, now)
        if transfer in self.sums:
            self.sums[transfer].time = min(self.sums[transfer].time, now)

    def _reduce(self, chunk: Chunk, raw: NDArray[Any]) -> None:
        address, exists, dtype = self.place.elements()
        kind = TYPES[self.element_type]
        size = 2 if kind == "bf16" else np.dtype(kind).itemsize
        wide = dtype.itemsize // size
        at = (address[:, :, None] + np.arange(0, dtype.itemsize, size)).reshape(len(address), -1)
        alive = np.repeat(exists, wide, axis=1)
        cells = chunk.memory.offsets(at) // size
        values = np.ascontiguousarray(raw).view(f"u{size}").reshape(at.shape)
        if chunk.sums is not None and self.operation == "add" and self.element_type in FLOATS:
            self._put_off(chunk, chunk.sums, cells, values, alive, kind)
            return
        if chunk.sums is not None:
            chunk.sums.settle(cells[alive], size)
        target, operation = chunk.memory.u8.view(f"u{size}"), OPERATIONS[self.operation]
        if kind == "bf16":
            reduce_bf16(target, cells[alive], values[alive], operation)
        else:
            operation.at(target.view(kind), cells[alive], values[alive].view(kind))

    def _put_off(
        self,
        chunk: Chunk,
        sums: PendingSums,
        cells: Ints,
        values: NDArray[Any],
        alive: NDArray[np.bool_],
        kind: str,
    ) -> None:
        for transfer in np.flatnonzero(alive.any(axis=1)).tolist():
            slot, warp = divmod(int(self.thread[transfer]) // 32, chunk.warps)
            there = alive[transfer]
            one = sums.put_off(slot, warp, cells[transfer][there], values[transfer][there], kind)
            one.time = self.seen_at.get(transfer, NOT_WAITED)
            self.sums[transfer] = one


class StoreWait(Wait):
    """Threads that wait until the bulk stores of their older groups are over, or were read."""

    def __init__(
        self,
        flights: list[StoreFlight],
        pairs: int,
        pair_of: dict[int, NDArray[np.int64]],
        *,
        reads_only: bool,
    ) -> None:
        self.flights, self.pairs, self.pair_of = flights, pairs, pair_of
        self.reads_only = reads_only

    def ready(self) -> NDArray[np.bool_]:
        """Which pairs have no transfer left in flight."""
        out = np.ones(self.pairs, np.bool_)
        for number, flight in enumerate(self.flights):
            if not (flight.landed or (self.reads_only and flight.raw is not None)):
                out[self.pair_of[number]] = False
        return out

    def finish(self, _: Unit) -> None:
        """Read marks were set when the wait was issued."""

    def describe(self, pair: int) -> str:
        """A bulk group."""
        return "wait for bulk stores in flight"

    def select(self, pairs: NDArray[np.intp]) -> StoreWait:
        """The same wait for some pairs."""
        place = np.full(self.pairs, -1)
        place[pairs] = np.arange(len(pairs))
        kept = {n: place[p][place[p] >= 0] for n, p in self.pair_of.items()}
        return StoreWait(self.flights, len(pairs), kept, reads_only=self.reads_only)
