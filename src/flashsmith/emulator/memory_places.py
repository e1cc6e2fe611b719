"""Which addresses of global memory are taken, and where in the arena their bytes lie."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from flashsmith.emulator.machine.address_space import FAR_BASE, GLOBAL_BASE

ALIGN = 256
GUARD_BYTES = 4096  # between two buffers; nothing may touch it
FAR_BYTES = (1 << 33) + (1 << 20)  # between two sparse buffers; cut to 32 bits it leads nowhere


def round_up(n_bytes: int, unit: int = ALIGN) -> int:
    """The next multiple of a unit."""
    return -(-n_bytes // unit) * unit


def _room(n_bytes: int) -> int:
    """What a buffer takes of the arena, its guard zone included."""
    return round_up(max(n_bytes, 1)) + GUARD_BYTES


@dataclass(frozen=True, slots=True)
class Run:
    """Bytes that lie together; `shift` taken off their address is their place in the arena."""

    start: int
    n_bytes: int
    shift: int = GLOBAL_BASE

    @property
    def end(self) -> int:
        """The first address behind it."""
        return self.start + self.n_bytes


@dataclass(frozen=True)
class Places:
    """Buffers by address, and the parts of the arena they take; replaced whole, never changed."""

    runs: tuple[Run, ...] = ()  # of live buffers, by address
    rooms: Mapping[int, tuple[int, int]] = field(default_factory=dict)  # buffer → start, bytes
    free: tuple[tuple[int, int], ...] = ()  # (start, room) of freed places, sorted
    end: int = GLOBAL_BASE + GUARD_BYTES
    far_end: int = FAR_BASE
    is_sparse: bool = False  # some run is not where its address says

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """The first address of each run."""
        return tuple(run.start for run in self.runs)

    @cached_property
    def table(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Starts, ends and shifts of the runs as arrays."""
        runs = self.runs
        return (
            np.array([run.start for run in runs], np.int64),
            np.array([run.end for run in runs], np.int64),
            np.array([run.shift for run in runs], np.int64),
        )

    def with_buffer(self, n_bytes: int) -> tuple[Places, int]:
        """The first freed place that is large enough, else the end of the arena, taken."""
        taken, start = self._with_room(_room(n_bytes))
        return taken._with_runs(start, start, (Run(start, n_bytes),)), start

    def with_runs(self, n_bytes: int, offsets: Iterable[int]) -> tuple[Places, int]:
        """Runs at these offsets from one far address, packed in the arena."""
        address = self.far_end
        packed: list[tuple[int, int]] = []  # address, offset in the room
        room = 0
        for offset in offsets:
            # A run keeps its alignment: views of 16 bytes see the same cells.
            room = round_up(room) + (address + offset) % ALIGN
            packed.append((address + offset, room))
            room += n_bytes
        taken, start = self._with_room(_room(room))
        runs = tuple(Run(at, n_bytes, at - (start + inner - GLOBAL_BASE)) for at, inner in packed)
        last = max(run.end for run in runs)
        far = replace(taken, far_end=round_up(last + FAR_BYTES), is_sparse=True)
        return far._with_runs(address, start, runs), address

    def without_buffer(self, address: int) -> Places:
        """The same with a buffer given back; neighbouring free places become one."""
        rooms = dict(self.rooms)
        joined: list[tuple[int, int]] = []
        for start, room in sorted((*self.free, rooms.pop(address))):
            if joined and sum(joined[-1]) == start:
                joined[-1] = (joined[-1][0], joined[-1][1] + room)
            else:
                joined.append((start, room))
        end = self.end
        if joined and sum(joined[-1]) == end:
            end = joined.pop()[0]
        first, room = self.rooms[address]
        inside = range(first - GLOBAL_BASE, first - GLOBAL_BASE + room)
        runs = tuple(run for run in self.runs if run.start - run.shift not in inside)
        sparse = any(run.shift != GLOBAL_BASE for run in runs)
        return Places(runs, rooms, tuple(joined), end, self.far_end, sparse)

    def _with_room(self, room: int) -> tuple[Places, int]:
        free, end = list(self.free), self.end
        for number, (start, size) in enumerate(free):
            if size >= room:
                free[number : number + 1] = [(start + room, size - room)] if size > room else []
                break
        else:
            start, end = end, end + room
        taken = {**self.rooms, start: (start, room)}
        return replace(self, rooms=taken, free=tuple(free), end=end), start

    def _with_runs(self, address: int, start: int, more: tuple[Run, ...]) -> Places:
        """The room at `start` belongs to the buffer at `address`."""
        rooms = dict(self.rooms)
        rooms[address] = rooms.pop(start)
        runs = list(self.runs)
        for run in more:
            insort(runs, run, key=attrgetter("start"))
        return replace(self, runs=tuple(runs), rooms=rooms)

    def below(self, address: int) -> Run | None:
        """The last run that begins at or below an address."""
        place = bisect_right(self.starts, address) - 1
        return self.runs[place] if place >= 0 else None
