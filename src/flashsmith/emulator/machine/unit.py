"""What runs: warps of several ctas that are at the same instruction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from flashsmith.emulator.checks.undefined import marked, merged_mask
from flashsmith.emulator.machine.values import Value

LANES = np.arange(32)


class Wait:
    """What a unit waits for, a truth value a pair of cta and warp.

    A plain class, not a Protocol: the scheduler asks for its kind in every step.
    """

    looked: int = -1  # the epoch in which not all pairs were ready; -1 before the first look

    def epoch(self) -> int:
        """A number that changes before `ready` can; -1 where none is kept."""
        return -1

    def ready(self) -> NDArray[np.bool_]:
        """Which pairs may go on."""
        raise NotImplementedError

    def finish(self, unit: Unit) -> None:
        """Called once when all pairs of the unit are ready: joins clocks, sets registers."""
        raise NotImplementedError

    def describe(self, pair: int) -> str:
        """What the pair waits for, for the report of a deadlock."""
        raise NotImplementedError

    def select(self, pairs: NDArray[np.intp]) -> Wait:
        """The same wait for some of the pairs."""
        raise NotImplementedError


class LaneState(Protocol):
    """State that belongs to threads (open copy groups), split and joined with the unit."""

    def select(self, lanes: NDArray[np.intp], active: NDArray[np.bool_] | None) -> LaneState:
        """The part of the lanes at these positions, in this order, of those that are active."""

    def joined(self, others: Sequence[tuple[LaneState, NDArray[np.intp]]]) -> LaneState:
        """This state with others', each with the positions its lanes have in the new unit."""


class Unit:
    """Pairs of cta and warp with their registers; arrays in R are never changed in place."""

    __slots__ = (
        "R", "_cache", "cta", "first_warp", "idle", "mask", "moved", "pc", "safe", "state", "wait",
        "warp", "yielded",
    )  # fmt: skip

    def __init__(
        self,
        cta: NDArray[np.intp],
        warp: NDArray[np.intp],
        mask: NDArray[np.bool_] | None,
        registers: list[Value],
        pc: int,
    ) -> None:
        self.cta = cta  # chunk-local number of the cta, by pair
        self.warp = warp
        self.first_warp = int(warp[0])
        self.mask = mask  # active lanes, or None when all are
        self.R = registers
        self.pc = pc
        self.wait: Wait | None = None
        self.state: dict[str, LaneState] = {}
        self.safe = (-1, 0)  # Chunk.safe_time and the version of the clocks it was taken from
        self.moved = True  # ran, was made or stopped waiting since warps were last put together
        self.yielded = False  # asked to let others run first
        self.idle = 0  # segments since it last changed memory, waited or looked at a flag
        self._cache: dict[str, Value] = {}

    @property
    def pairs(self) -> int:
        """How many pairs of cta and warp the unit has."""
        return len(self.cta)

    def cached(self, key: str, make: Callable[[], Value]) -> Value:
        """An array that depends on the pairs only, made once."""
        value = self._cache.get(key)
        if value is None:
            value = self._cache[key] = make()
        return value

    @property
    def warps(self) -> frozenset[int]:
        """The pairs of cta and warp, each as one number."""
        return self.cached("warps", lambda: frozenset((self.cta * 64 + self.warp).tolist()))  # type: ignore[no-any-return]

    @property
    def lane_cta(self) -> NDArray[np.intp]:
        """The cta of each lane."""
        return self.cached("cta", lambda: np.repeat(self.cta, 32))  # type: ignore[no-any-return]

    @property
    def lane_warp(self) -> NDArray[np.intp]:
        """The warp of each lane."""
        return self.cached("warp", lambda: np.repeat(self.warp, 32))  # type: ignore[no-any-return]

    def array(self, value: Value) -> NDArray[Any]:
        """A register's value as an array over lanes."""
        value = np.asarray(value)
        return np.full(32 * self.pairs, value) if value.ndim == 0 else value

    def pairs_of(self, mask: NDArray[np.bool_] | None) -> NDArray[np.intp]:
        """Positions of the pairs that have a lane in `mask`."""
        if mask is None:
            return np.arange(self.pairs)
        return np.flatnonzero(mask.reshape(-1, 32).any(axis=1))

    def select(
        self, pairs: NDArray[np.intp], mask: NDArray[np.bool_] | None, live: Sequence[int]
    ) -> Unit:
        """A unit of some pairs (rising positions) with the live registers; `mask`: its lanes."""
        whole = len(pairs) == self.pairs
        registers: list[Value] = [None] * len(self.R)
        lanes = (pairs[:, None] * 32 + LANES).reshape(-1)
        first, last = (int(lanes[0]), int(lanes[-1]) + 1) if len(lanes) else (0, 0)
        neighbours = last - first == len(lanes)
        alike: dict[Any, list[int]] = {}  # by type of number, to be taken in one go
        for number, value in zip(live, _taken(self, live), strict=True):
            if whole or value is None or value.ndim == 0:
                registers[number] = value
            elif type(value) is not np.ndarray:
                registers[number] = value.reshape(-1, 32)[pairs].reshape(-1)
            elif neighbours:
                registers[number] = value[first:last]
            else:
                alike.setdefault(value.dtype, []).append(number)
        for some in alike.values():
            rows = _stacked(self, some).reshape(len(some), -1, 32)[:, pairs]
            for number, row in zip(some, rows.reshape(len(some), -1), strict=True):
                registers[number] = row
        part = Unit(self.cta[pairs], self.warp[pairs], mask, registers, self.pc)
        part.state = {key: state.select(lanes, mask) for key, state in self.state.items()}
        part.wait = self.wait.select(pairs) if self.wait is not None else None
        part.idle = self.idle
        if whole:
            part._cache = self._cache
        return part

    def fork(self, active: NDArray[np.bool_], pc: int, live: Sequence[int]) -> Unit | None:
        """The unit of the active lanes, which goes on at `pc`; None when there are none.

        `live` are the registers that are read from there on.
        """
        rows = active.reshape(-1, 32)
        some = rows.any(axis=1)
        if not some.any():
            return None
        pairs = np.flatnonzero(some)
        kept = rows[pairs]
        part = self.select(pairs, None if kept.all() else kept.reshape(-1), live)
        part.pc = pc
        return part


def _taken(unit: Unit, numbers: Sequence[int]) -> tuple[Value, ...]:
    """Some registers of a unit."""
    if len(numbers) < 2:
        return tuple(unit.R[number] for number in numbers)
    return itemgetter(*numbers)(unit.R)  # type: ignore[no-any-return]


def _stacked(unit: Unit, numbers: Sequence[int]) -> NDArray[Any]:
    """Registers of one type as rows."""
    return np.concatenate(_taken(unit, numbers)).reshape(len(numbers), -1)


def merge(units: Sequence[Unit], live: Sequence[int]) -> Unit:
    """One unit of several at the same instruction; `live` are the registers still needed."""
    pairs = np.concatenate([u.cta * 64 + u.warp for u in units])
    keys, position = np.unique(pairs, return_inverse=True)
    total = 32 * len(keys)
    ats, places, begin = [], [], 0  # pairs and lanes of the new unit where each old unit's go
    for unit in units:
        at = position[begin : begin + unit.pairs]
        ats.append(at)
        places.append((at[:, None] * 32 + LANES).reshape(-1))
        begin += unit.pairs
    active = np.zeros(total, np.bool_)
    for unit, place in zip(units, places, strict=True):
        active[place if unit.mask is None else place[unit.mask]] = True
    registers: list[Value] = [None] * len(units[0].R)
    alike = _merge_singly(units, live, places, total, registers)
    for dtype, some in alike.items():
        rows = np.zeros((len(some), total), dtype)
        by_pair = rows.reshape(len(some), -1, 32)
        for unit, at, place in zip(units, ats, places, strict=True):
            stacked = _stacked(unit, some)
            if unit.mask is None:
                by_pair[:, at] = stacked.reshape(len(some), -1, 32)
            else:
                rows[:, place[unit.mask]] = stacked[:, unit.mask]
        for number, row in zip(some, rows, strict=True):
            registers[number] = row
    merged = Unit(keys // 64, keys % 64, None if active.all() else active, registers, units[0].pc)
    merged.idle = max(unit.idle for unit in units)
    for key in {key for unit in units for key in unit.state}:
        having = [(u.state[key], p) for u, p in zip(units, places, strict=True) if key in u.state]
        merged.state[key] = having[0][0].joined(having)
    return merged


def _merge_singly(
    units: Sequence[Unit],
    live: Sequence[int],
    places: list[NDArray[np.intp]],
    total: int,
    registers: list[Value],
) -> dict[Any, list[int]]:
    """Merges what units share or hold in different ways; returns the rest by type of number."""
    # Parts of the same warps: what none of them has changed is one array still.
    aligned = all(32 * unit.pairs == total for unit in units)
    two, plain = len(units) == 2, np.ndarray
    alike: dict[Any, list[int]] = {}
    for number, *values in zip(live, *(_taken(unit, live) for unit in units), strict=True):
        first, second = values[0], values[1]
        is_one = first is second and (two or all(value is first for value in values))
        if is_one and (aligned or first is None or first.ndim == 0):
            registers[number] = first
        elif (
            (type(first) is type(second) is plain and first.dtype == second.dtype)
            and (two or all(type(v) is plain and v.dtype == first.dtype for v in values))
        ):  # fmt: skip
            alike.setdefault(first.dtype, []).append(number)
        else:
            registers[number] = _merged_register(values, units, places, total)
    return alike


def _merged_register(
    values: list[Value],
    units: Sequence[Unit],
    places: list[NDArray[np.intp]],
    total: int,
) -> Value:
    defined = [v for v in values if v is not None]
    if not defined:
        return None
    first = defined[0]
    if all(v is first for v in values) and first.ndim == 0:
        return first
    if all(v is not None and v.ndim == 0 for v in values) and all(
        v.tobytes() == first.tobytes() for v in values
    ):
        return first
    out = np.zeros(total, first.dtype)
    undefined = merged_mask(values, [unit.mask for unit in units], places, total)
    for value, unit, place in zip(values, units, places, strict=True):
        if value is None:
            continue
        if unit.mask is None:
            out[place] = value
        else:
            out[place[unit.mask]] = value[unit.mask] if value.ndim else value
    return out if undefined is None else marked(out, undefined)
