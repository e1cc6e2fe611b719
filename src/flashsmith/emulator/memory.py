"""Global memory: buffers in one arena, with guard zones between them."""

from __future__ import annotations

import mmap
from bisect import bisect_right
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flashsmith.base.errors import ArgumentError, EmulationError
from flashsmith.emulator.address_space import GLOBAL_BASE

ALIGN = 256
GUARD_BYTES = 4096  # between two buffers; nothing may touch it
FIRST_BYTES = 1 << 20


def _room(n_bytes: int) -> int:
    """What a buffer takes of the arena, its guard zone included."""
    return -(-max(n_bytes, 1) // ALIGN) * ALIGN + GUARD_BYTES


class GlobalMemory:
    """Buffers that kernels reach by address; shared with child processes."""

    def __init__(self) -> None:
        self._starts: list[int] = []  # sorted
        self._sizes: dict[int, int] = {}
        self._end = GLOBAL_BASE + GUARD_BYTES
        self._free: list[tuple[int, int]] = []  # (start, room) of freed places, sorted
        self._grow(FIRST_BYTES)

    def _grow(self, n_bytes: int) -> None:
        old: NDArray[np.uint8] | None = getattr(self, "u8", None)
        # An anonymous shared mapping: what forked processes write is seen here.
        self._map = mmap.mmap(-1, n_bytes)
        self.u8: NDArray[np.uint8] = np.frombuffer(self._map, dtype=np.uint8)
        if old is not None:
            self.u8[: old.size] = old
        self.views: dict[int, NDArray[Any]] = {
            1: self.u8,
            2: self.u8.view(np.uint16),
            4: self.u8.view(np.uint32),
            8: self.u8.view(np.uint64),
            16: self.u8.view(np.complex128),
        }

    def allocate(self, n_bytes: int) -> int:
        """The address of a new zeroed buffer, aligned to 256 bytes."""
        if n_bytes < 0:
            raise ArgumentError(f"allocate: {n_bytes} bytes; a size is 0 or more.")
        start = self._place(_room(n_bytes))
        self._starts.insert(bisect_right(self._starts, start), start)
        self._sizes[start] = n_bytes
        offset = start - GLOBAL_BASE
        self.u8[offset : offset + n_bytes] = 0
        return start

    def _place(self, room: int) -> int:
        """The first freed place that is large enough, else the end of the arena."""
        for number, (start, size) in enumerate(self._free):
            if size >= room:
                rest = [(start + room, size - room)] if size > room else []
                self._free[number : number + 1] = rest
                return start
        start = self._end
        self._end += room
        if self._end - GLOBAL_BASE > self.u8.size:
            self._grow(2 * (self._end - GLOBAL_BASE))
        return start

    def free(self, address: int) -> None:
        """Gives a buffer back; later accesses to it are faults."""
        n_bytes = self._sizes.pop(address, None)
        if n_bytes is None:
            raise ArgumentError(f"free: no buffer begins at {address:#x}.")
        self._starts.remove(address)
        self._free.append((address, _room(n_bytes)))
        self._free.sort()
        joined: list[tuple[int, int]] = []
        for start, room in self._free:
            if joined and sum(joined[-1]) == start:
                joined[-1] = (joined[-1][0], joined[-1][1] + room)
            else:
                joined.append((start, room))
        if joined and sum(joined[-1]) == self._end:
            self._end = joined.pop()[0]
        self._free = joined

    def write(self, address: int, data: NDArray[Any]) -> None:
        """Copies the bytes of an array into a buffer."""
        raw = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        offset = self._offset(address, raw.size)
        self.u8[offset : offset + raw.size] = raw

    def read(self, address: int, n_bytes: int) -> NDArray[np.uint8]:
        """A copy of bytes of a buffer."""
        offset = self._offset(address, n_bytes)
        return self.u8[offset : offset + n_bytes].copy()

    def _offset(self, address: int, n_bytes: int) -> int:
        if not self.holds(address, address + n_bytes):
            raise EmulationError(
                "out of bounds",
                f"{n_bytes} bytes lie outside {self.nearest(address)}",
                address=address,
            )
        return address - GLOBAL_BASE

    def holds(self, first: int, end: int) -> bool:
        """Whether the bytes from `first` up to `end` lie in one live buffer."""
        place = bisect_right(self._starts, first) - 1
        if place < 0:
            return False
        start = self._starts[place]
        return end <= start + self._sizes[start]

    def outside(self, addresses: NDArray[np.uint64], n_bytes: int) -> NDArray[np.bool_]:
        """Which accesses of `n_bytes` leave all live buffers."""
        starts = np.array(self._starts, np.uint64)
        if not starts.size:
            return np.ones(addresses.shape, np.bool_)
        ends = np.array([s + self._sizes[s] for s in self._starts], np.uint64)
        place = np.searchsorted(starts, addresses, side="right").astype(np.int64) - 1
        beyond = addresses + np.uint64(n_bytes) > ends[np.maximum(place, 0)]
        return (place < 0) | beyond | (addresses + np.uint64(n_bytes) < addresses)

    def nearest(self, address: int) -> str:
        """The buffer next below an address, in words for a fault."""
        place = bisect_right(self._starts, address) - 1
        if place < 0:
            return "every buffer"
        start = self._starts[place]
        return f"the buffer of {self._sizes[start]:,} bytes at {start:#x}"
