"""Global memory: buffers in one arena, with guard zones between them."""

from __future__ import annotations

import mmap
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flashsmith.base.errors import ArgumentError, EmulationError
from flashsmith.emulator.machine.address_space import GLOBAL_BASE

ALIGN = 256
GUARD_BYTES = 4096  # between two buffers; nothing may touch it
FIRST_BYTES = 1 << 20


def _room(n_bytes: int) -> int:
    """What a buffer takes of the arena, its guard zone included."""
    return -(-max(n_bytes, 1) // ALIGN) * ALIGN + GUARD_BYTES


@dataclass(frozen=True, slots=True)
class _Places:
    """Which parts of the arena are taken; replaced whole, so that an interrupt leaves the old."""

    starts: tuple[int, ...] = ()  # of live buffers, sorted
    sizes: Mapping[int, int] = field(default_factory=dict)
    free: tuple[tuple[int, int], ...] = ()  # (start, room) of freed places, sorted
    end: int = GLOBAL_BASE + GUARD_BYTES

    def with_buffer(self, n_bytes: int) -> tuple[_Places, int]:
        """The first freed place that is large enough, else the end of the arena, taken."""
        room, free, end = _room(n_bytes), list(self.free), self.end
        for number, (start, size) in enumerate(free):
            if size >= room:
                free[number : number + 1] = [(start + room, size - room)] if size > room else []
                break
        else:
            start, end = end, end + room
        at = bisect_right(self.starts, start)
        starts = (*self.starts[:at], start, *self.starts[at:])
        return _Places(starts, {**self.sizes, start: n_bytes}, tuple(free), end), start

    def without_buffer(self, address: int) -> _Places:
        """The same with a buffer given back; neighbouring free places become one."""
        sizes = dict(self.sizes)
        freed = (address, _room(sizes.pop(address)))
        joined: list[tuple[int, int]] = []
        for start, room in sorted((*self.free, freed)):
            if joined and sum(joined[-1]) == start:
                joined[-1] = (joined[-1][0], joined[-1][1] + room)
            else:
                joined.append((start, room))
        end = self.end
        if joined and sum(joined[-1]) == end:
            end = joined.pop()[0]
        starts = tuple(start for start in self.starts if start != address)
        return _Places(starts, sizes, tuple(joined), end)


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
        self._places = _Places()
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
        needed = places.end - GLOBAL_BASE
        if needed > self.u8.size:
            self._arena = _Arena(2 * needed, self.u8)
        self._places = places
        offset = start - GLOBAL_BASE
        self.u8[offset : offset + n_bytes] = 0
        return start

    def free(self, address: int) -> None:
        """Gives a buffer back; later accesses to it are faults."""
        if address not in self._places.sizes:
            raise ArgumentError(f"free: no buffer begins at {address:#x}.")
        self._places = self._places.without_buffer(address)

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
        place = self._below(first)
        if place < 0:
            return False
        start = self._places.starts[place]
        return end <= start + self._places.sizes[start]

    def outside(self, addresses: NDArray[np.uint64], n_bytes: int) -> NDArray[np.bool_]:
        """Which accesses of `n_bytes` leave all live buffers."""
        places = self._places
        starts = np.array(places.starts, np.uint64)
        if not starts.size:
            return np.ones(addresses.shape, np.bool_)
        ends = np.array([s + places.sizes[s] for s in places.starts], np.uint64)
        place = np.searchsorted(starts, addresses, side="right").astype(np.int64) - 1
        beyond = addresses + np.uint64(n_bytes) > ends[np.maximum(place, 0)]
        return (place < 0) | beyond | (addresses + np.uint64(n_bytes) < addresses)

    def nearest(self, address: int) -> str:
        """The buffer next below an address, in words for a fault."""
        place = self._below(address)
        if place < 0:
            return "every buffer"
        start = self._places.starts[place]
        return f"the buffer of {self._places.sizes[start]:,} bytes at {start:#x}"

    def _below(self, address: int) -> int:
        """The number of the last buffer that begins at or below an address, or -1."""
        return bisect_right(self._places.starts, address) - 1
