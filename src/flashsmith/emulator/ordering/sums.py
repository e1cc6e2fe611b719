"""Sums of floats in global memory that nothing orders: their order follows the seed.

A sum of a random schedule is put off until somebody reads its place, until one of the same place
comes that is ordered behind it, or until chance or the end of the launch takes it. What a release
and an acquire order thus stays in order, and a kernel that counts on an order it has not made gives
other bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from flashsmith.base.dtypes import DType, from_bits, to_bits
from flashsmith.emulator.machine.values import Value
from flashsmith.emulator.ordering.async_writes import NOT_WAITED

if TYPE_CHECKING:
    from flashsmith.emulator.machine.chunk import Chunk
    from flashsmith.emulator.machine.unit import Unit

MOST_PENDING = 256
CHANCE = 0.5  # that one of those put off is taken when another comes


@dataclass(slots=True, eq=False)
class Sum:
    """Numbers that are still to be added to cells of global memory."""

    cells: NDArray[np.int64]  # in elements of the arena
    values: NDArray[Any]
    kind: str  # numpy type of the elements, or "bf16"
    cta: int
    slot: int
    warp: int
    time: int  # when it is over by what its warp knows
    low: int  # first byte, and the first behind the last
    high: int


def add_to(memory: NDArray[np.uint8], cells: NDArray[np.int64], values: Value, kind: str) -> None:
    """Adds elements one after another; `values` are bits for bf16, numbers for all else."""
    if kind == "bf16":
        reduce_bf16(memory.view(np.uint16), cells, values, np.add)
    else:
        np.add.at(memory.view(kind), cells, values.view(kind))


def reduce_bf16(
    target: NDArray[np.uint16], cells: NDArray[np.int64], values: Value, operation: np.ufunc
) -> None:
    """Applies an operation to bf16 elements, those of equal cells one after another."""
    numbers = from_bits(values, DType.BF16)
    order = np.argsort(cells, kind="stable")
    repeat = np.zeros(len(cells), np.int64)
    same = np.flatnonzero(cells[order][1:] == cells[order][:-1]) + 1
    for position in same:
        repeat[order[position]] = repeat[order[position - 1]] + 1
    for turn in range(int(repeat.max(initial=0)) + 1):
        now = repeat == turn
        old = from_bits(target[cells[now]], DType.BF16)
        target[cells[now]] = to_bits(operation(old, numbers[now]), DType.BF16)


class PendingSums:
    """The sums of a chunk that are not in memory yet; only in random schedules."""

    def __init__(self, chunk: Chunk, seed: int) -> None:
        self.chunk = chunk
        self.random = np.random.default_rng([seed, 1])
        self.pending: list[Sum] = []

    def put_off(
        self, slot: int, warp: int, cells: NDArray[np.int64], values: NDArray[Any], kind: str
    ) -> Sum:
        """Takes a sum of one warp, whose time is not known yet."""
        size = 2 if kind == "bf16" else np.dtype(kind).itemsize
        low, high = int(cells.min()) * size, (int(cells.max()) + 1) * size
        cta = int(self.chunk.ctas[slot])
        order = self.random.permutation(len(cells))
        one = Sum(cells[order], values[order], kind, cta, slot, warp, NOT_WAITED, low, high)
        self.pending.append(one)
        if len(self.pending) > MOST_PENDING:
            self._take_some(MOST_PENDING // 2)
        elif self.random.random() < CHANCE:
            self._take_some(1)
        return one

    def _take_some(self, count: int) -> None:
        """Adds some of them, old and young ones alike."""
        some = self.random.permutation(len(self.pending))[:count]
        self._take([self.pending[at] for at in some.tolist()])

    def settle_before(
        self, slot: int, warp: int, cells: NDArray[Any], n_bytes: int, *, by_copy: bool
    ) -> None:
        """Adds what a warp knows to be over, at cells that it is about to add to itself."""
        self._take(
            [
                one
                for one in self._overlapping(cells, n_bytes)
                if self._is_known(one, slot, warp, by_copy)
            ]
        )

    def _is_known(self, one: Sum, slot: int, warp: int, by_copy: bool) -> bool:
        chunk = self.chunk
        if one.slot == slot and one.cta == int(chunk.ctas[slot]):
            return one.time <= int(chunk.known[slot, warp, one.warp])
        clocks = chunk.clocks
        return clocks is not None and one.time <= clocks.knows(
            slot, warp, one.slot, one.warp, by_copy
        )

    def settle(self, cells: NDArray[Any], n_bytes: int) -> None:
        """Adds all that overlaps with cells somebody reads or writes."""
        self._take(self._overlapping(cells, n_bytes))

    def _overlapping(self, cells: NDArray[Any], n_bytes: int) -> list[Sum]:
        if not self.pending or not cells.size:
            return []
        low, high = int(cells.min()) * n_bytes, (int(cells.max()) + 1) * n_bytes
        return [one for one in self.pending if one.low < high and low < one.high]

    def settle_all(self) -> None:
        """Adds all of them."""
        self._take(list(self.pending))

    def _take(self, sums: list[Sum]) -> None:
        if not sums:
            return
        for at in self.random.permutation(len(sums)).tolist():
            one = sums[at]
            add_to(self.chunk.memory.u8, one.cells, one.values, one.kind)
        gone = {id(one) for one in sums}
        self.pending = [one for one in self.pending if id(one) not in gone]


def put_off_lanes(
    c: Chunk, u: Unit, lanes: NDArray[np.intp], cells: NDArray[np.int64], values: Value, index: int
) -> None:
    """The sums of a red instruction, warp by warp; `cells` and `values` have a row a lane."""
    assert c.sums is not None
    now = c.tick(index)
    pair = lanes // 32
    for number in np.unique(pair).tolist():
        mine = pair == number
        slot, warp = int(u.cta[number]), int(u.warp[number])
        c.sums.settle_before(slot, warp, cells[mine], values.itemsize, by_copy=False)
        kind = values.dtype.str[1:]
        one = c.sums.put_off(slot, warp, cells[mine].reshape(-1), values[mine].reshape(-1), kind)
        one.time = now
