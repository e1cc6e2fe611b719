"""Global memory: buffers in one arena, with guard zones between them."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flashsmith.base.errors import ArgumentError, EmulationError
from flashsmith.emulator.machine.address_space import GLOBAL_BASE, PARAM_WINDOW
from flashsmith.emulator.memory_places import Places

FIRST_BYTES = 1 << 20
# Between rows or tensors that are to lie far apart: cut to 32 bits, in bytes or in elements of 2
# or 4 bytes, a multiple of it falls where nothing lies.
FAR_STRIDE = (1 << 34) + (1 << 14)


class _Arena:
    """Bytes in an anonymous shared mapping: what a launch's own processes write is seen here."""

    def __init__(self, n_bytes: int, content: NDArray[np.uint8] | None = None) -> None:
        self.u8: NDArray[np.uint8] = np.frombuffer(mmap.mmap(-1, n_bytes), dtype=np.uint8)
        if content is not None:
            self.u8[: content.size] = content
        self.views: dict[int, NDArray[Any]] = {
            1: self.u8,
            2: self.u8.view(np.uint16),
            4: self.u8.view(np.uint32),
            8: self.u8.view(np.uint64),
            16: self.u8.view(np.complex128),
        }


class GlobalMemory:
    """Buffers that kernels reach by address.

    Places and arena are each replaced by one assignment: whatever an exception interrupts, what is
    here is consistent.
    """

    def __init__(self) -> None:
        self._places = Places()
        self._arena = _Arena(FIRST_BYTES)

    @property
    def u8(self) -> NDArray[np.uint8]:
        """All bytes of the arena."""
        return self._arena.u8

    @property
    def views(self) -> dict[int, NDArray[Any]]:
        """The arena by the size of its elements in bytes."""
        return self._arena.views

    def separate(self) -> None:
        """Moves to an arena of its own: processes that share the old one write it no more."""
        self._arena = _Arena(self.u8.size, self.u8)

    def allocate(self, n_bytes: int) -> int:
        """The address of a new zeroed buffer, aligned to 256 bytes."""
        if n_bytes < 0:
            raise ArgumentError(f"allocate: {n_bytes} bytes; a size is 0 or more.")
        places, start = self._places.with_buffer(n_bytes)
        self._take(places)
        offset = start - GLOBAL_BASE
        self.u8[offset : offset + n_bytes] = 0
        return start

    def allocate_sparse(
        self, n_bytes: int, *, counts: Sequence[int] = (), strides_bytes: Sequence[int] = ()
    ) -> int:
        """The address of zeroed runs of `n_bytes`, far from every other buffer.

        `counts` and `strides_bytes` say where they lie: run (i, j) at the address plus i times the
        first stride plus j times the second. Only the runs take memory, however far apart they
        are; an access between them is a fault.
        """
        offsets = _offsets(n_bytes, tuple(counts), tuple(strides_bytes))
        places, address = self._places.with_runs(n_bytes, offsets)
        if places.far_end > PARAM_WINDOW:
            raise ArgumentError(
                f"allocate_sparse: the last run would end at {places.far_end:#x}, addresses end "
                f"at {PARAM_WINDOW:#x}; take smaller strides."
            )
        self._take(places)
        for offset in offsets:
            self.write(address + offset, np.zeros(n_bytes, np.uint8))
        return address

    def _take(self, places: Places) -> None:
        """Makes these the places, in an arena that is large enough."""
        needed = places.end - GLOBAL_BASE
        if needed > self.u8.size:
            self._arena = _Arena(2 * needed, self.u8)
        self._places = places

    def free(self, address: int) -> None:
        """Gives a buffer back; later accesses to it are faults."""
        if address not in self._places.rooms:
            raise ArgumentError(f"free: no buffer begins at {address:#x}.")
        self._places = self._places.without_buffer(address)

    def write(self, address: int, data: NDArray[Any]) -> None:
        """Copies the bytes of an array into a buffer (of a sparse one: into one run)."""
        raw = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        offset = self._offset(address, raw.size)
        self.u8[offset : offset + raw.size] = raw

    def read(self, address: int, n_bytes: int) -> NDArray[np.uint8]:
        """A copy of bytes of a buffer (of a sparse one: of one run)."""
        offset = self._offset(address, n_bytes)
        return self.u8[offset : offset + n_bytes].copy()

    def _offset(self, address: int, n_bytes: int) -> int:
        run = self._places.below(address)
        if run is None or address + n_bytes > run.end:
            raise EmulationError(
                "out of bounds",
                f"{n_bytes} bytes lie outside {self.nearest(address)}",
                address=address,
            )
        return address - run.shift

    @property
    def is_sparse(self) -> bool:
        """Whether some buffer does not lie in the arena where its address says."""
        return self._places.is_sparse

    def offsets(self, addresses: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where bytes lie in the arena; the addresses lie in live buffers."""
        places = self._places
        if not places.is_sparse:
            return addresses - GLOBAL_BASE
        starts, _, shifts = places.table
        return addresses - shifts[np.searchsorted(starts, addresses, side="right") - 1]

    def holds(self, first: int, end: int) -> bool:
        """Whether the bytes from `first` up to `end` lie in one live buffer."""
        run = self._places.below(first)
        return run is not None and end <= run.end

    def outside(self, addresses: NDArray[np.uint64], n_bytes: int) -> NDArray[np.bool_]:
        """Which accesses of `n_bytes` leave all live buffers."""
        starts, ends, _ = self._places.table
        if not starts.size:
            return np.ones(addresses.shape, np.bool_)
        place = np.searchsorted(starts.view(np.uint64), addresses, side="right").astype(np.int64)
        last = ends.view(np.uint64)[np.maximum(place - 1, 0)]
        beyond = addresses + np.uint64(n_bytes) > last
        return (place < 1) | beyond | (addresses + np.uint64(n_bytes) < addresses)

    def nearest(self, address: int) -> str:
        """The buffer next below an address, in words for a fault."""
        run = self._places.below(address)
        if run is None:
            return "every buffer"
        return f"the buffer of {run.n_bytes:,} bytes at {run.start:#x}"


def _offsets(
    n_bytes: int, counts: tuple[int, ...], strides_bytes: tuple[int, ...]
) -> tuple[int, ...]:
    """The distance of each run from the first, ascending."""
    if n_bytes < 1 or len(counts) != len(strides_bytes) or any(n < 1 for n in counts):
        raise ArgumentError(
            f"allocate_sparse: runs of {n_bytes} bytes, counts {counts}, strides {strides_bytes}; "
            "runs have a byte or more, and every count of 1 or more has a stride."
        )
    offsets = np.zeros(1, np.int64)
    for count, stride in zip(counts, strides_bytes, strict=True):
        offsets = (offsets[:, None] + np.arange(count) * stride).reshape(-1)
    offsets.sort()
    if offsets[0] < 0 or (np.diff(offsets) < n_bytes).any():
        raise ArgumentError(
            f"allocate_sparse: strides {strides_bytes} lay runs of {n_bytes} bytes over each "
            "other or before the first; they must be apart and ascend."
        )
    return tuple(offsets.tolist())
