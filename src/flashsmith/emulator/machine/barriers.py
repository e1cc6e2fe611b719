"""The sixteen named barriers of a cta: who arrived, who waits, what is known after."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from flashsmith.emulator.machine.unit import Unit, Wait
from flashsmith.emulator.machine.values import Value, distinct

if TYPE_CHECKING:
    from flashsmith.emulator.machine.chunk import Chunk

COUNT = 16  # PTX ISA "Parallel Synchronization and Communication Instructions: bar"


class Barriers:
    """State by cta and barrier number."""

    def __init__(self, chunk: Chunk) -> None:
        shape = (len(chunk.ctas), COUNT)
        self.chunk = chunk
        self.arrived = np.zeros(shape, np.int64)  # threads since the last completion
        self.expected = np.zeros(shape, np.int64)
        self.generation = np.zeros(shape, np.int64)  # completions
        self.completions = 0  # rounds in which any completed
        self.clock = np.zeros((*shape, chunk.agents), np.int64)  # joined clocks of arrivals
        self.released = np.zeros_like(self.clock)  # clock of the last completion
        self.votes = np.zeros((*shape, 2), np.int64)  # bar.red: lanes for, lanes in all
        self.result = np.zeros_like(self.votes)  # of the last completion

    def clear(self, slots: NDArray[np.intp]) -> None:
        """Ctas begin in these slots."""
        for state in (self.arrived, self.expected, self.generation, self.clock, self.released,
                      self.votes, self.result):  # fmt: skip
            state[slots] = 0

    def arrive(self, unit: Unit, ident: Value, count: Value, index: int, *, waits: bool) -> None:
        """Counts every warp of the unit as arrived; `waits` makes the unit wait for completion."""
        chunk = self.chunk
        if chunk.counters is not None:
            chunk.counters.barrier_arrivals += unit.pairs
        threads = chunk.warps * 32
        if count is not None and np.ndim(count) == 0 and int(count) == threads:
            count = None
        if count is None and waits and np.ndim(ident) == 0 and self._is_whole(unit, int(ident)):
            chunk.join_whole_ctas(unit)
            return
        idents = self._per_pair(unit, ident)
        counts = self._per_pair(unit, threads if count is None else count)
        self._check(unit, idents, counts, index)
        where = (unit.cta, idents)
        before = self.generation[where]
        np.add.at(self.arrived, where, 32)
        self.expected[where] = counts
        np.maximum.at(self.clock, where, chunk.clock_rows(unit))
        over = self.arrived[where] > counts
        if over.any():
            pair = int(np.flatnonzero(over)[0])
            chunk.fault(
                "over-arrival",
                f"{int(self.arrived[where][pair])} threads arrived at barrier {idents[pair]}, "
                f"which takes {counts[pair]}",
                index,
                unit,
                lane=32 * pair,
            )
        self._complete(where)
        if waits:
            unit.wait = BarrierWait(self, unit.cta, idents, before, index)

    def vote(self, unit: Unit, ident: Value, count: Value, vote: Value, index: int) -> None:
        """Arrives with a truth value a lane, and waits."""
        active = np.ones((unit.pairs, 32), np.bool_)
        if unit.mask is not None:
            active = unit.mask.reshape(-1, 32)
        said = unit.array(vote).reshape(-1, 32) & active
        where = (unit.cta, self._per_pair(unit, ident) % COUNT)
        np.add.at(self.votes, where, np.stack([said.sum(axis=1), active.sum(axis=1)], axis=1))
        self.arrive(unit, unit.array(ident), count, index, waits=True)

    def outcome(self, unit: Unit, ident: Value, operation: str) -> Value:
        """What the arrivals of the last completion said together."""
        votes, total = self.result[unit.cta, self._per_pair(unit, ident)].T
        found = {"popc": votes.astype(np.uint32), "and": votes == total, "or": votes > 0}
        return np.repeat(found[operation], 32)

    def _is_whole(self, unit: Unit, ident: int) -> bool:
        """Whether all warps of every cta of the unit arrive here at once, and are the first."""
        warps = self.chunk.warps
        whole = unit.cached("whole", lambda: bool(unit.pairs == warps * len(np.unique(unit.cta))))
        return bool(whole) and ident < COUNT and not self.arrived[unit.cta, ident].any()

    def _per_pair(self, unit: Unit, value: Value) -> NDArray[np.int64]:
        value = np.asarray(value)
        if value.ndim == 0:
            return np.full(unit.pairs, int(value), np.int64)
        rows = value.reshape(-1, 32)
        if unit.mask is None:
            return np.asarray(rows[:, 0], np.int64)
        first = unit.mask.reshape(-1, 32).argmax(axis=1)
        return np.asarray(rows[np.arange(unit.pairs), first], np.int64)

    def _check(
        self, unit: Unit, idents: NDArray[np.int64], counts: NDArray[np.int64], index: int
    ) -> None:
        bad = (idents < 0) | (idents >= COUNT)
        if bad.any():
            pair = int(np.flatnonzero(bad)[0])
            self.chunk.fault(
                "bad barrier",
                f"barrier {idents[pair]}; they are 0 to 15",
                index,
                unit,
                lane=32 * pair,
            )
        bad = (counts <= 0) | (counts % 32 != 0) | (counts > 32 * self.chunk.warps)
        if bad.any():
            pair = int(np.flatnonzero(bad)[0])
            self.chunk.fault(
                "bad barrier",
                f"{counts[pair]} threads at barrier {idents[pair]}; the count is a multiple of 32 "
                f"up to {32 * self.chunk.warps}",
                index,
                unit,
                lane=32 * pair,
            )
        where = (unit.cta, idents)
        clash = (self.arrived[where] > 0) & (self.expected[where] != counts)
        if clash.any():
            pair = int(np.flatnonzero(clash)[0])
            self.chunk.fault(
                "bad barrier",
                f"{counts[pair]} threads given for barrier {idents[pair]}, earlier arrivals gave "
                f"{int(self.expected[where][pair])}",
                index,
                unit,
                lane=32 * pair,
            )

    def _complete(self, where: tuple[NDArray[np.intp], NDArray[np.int64]]) -> None:
        done = self.arrived[where] == self.expected[where]
        if not done.any():
            return
        ctas, idents = distinct(where[0][done], where[1][done])
        self.released[ctas, idents] = self.clock[ctas, idents]
        self.clock[ctas, idents] = 0
        self.result[ctas, idents] = self.votes[ctas, idents]
        self.votes[ctas, idents] = 0
        self.arrived[ctas, idents] = 0
        self.generation[ctas, idents] += 1
        self.completions += 1


class BarrierWait(Wait):
    """Waits for the completion of a named barrier after the arrival of the waiting warps."""

    def __init__(
        self,
        barriers: Barriers,
        cta: NDArray[np.intp],
        ident: NDArray[np.int64],
        before: NDArray[np.int64],
        index: int,
    ) -> None:
        self.barriers = barriers
        self.cta = cta
        self.ident = ident
        self.before = before  # completions when the warp arrived
        self.index = index

    def epoch(self) -> int:
        """No barrier completes without being counted."""
        return self.barriers.completions

    def ready(self) -> NDArray[np.bool_]:
        """Which pairs' barrier has completed since."""
        return self.barriers.generation[self.cta, self.ident] > self.before

    def finish(self, unit: Unit) -> None:
        """What arrived warps did before is known to the waiting ones."""
        self.barriers.chunk.join(unit, self.barriers.released[self.cta, self.ident])

    def describe(self, pair: int) -> str:
        """Barrier, threads arrived and expected, line."""
        where = (self.cta[pair], self.ident[pair])
        line = self.barriers.chunk.kernel.instructions[self.index].line
        return (
            f"waits at PTX line {line} for barrier {int(self.ident[pair])} "
            f"({int(self.barriers.arrived[where])} of {int(self.barriers.expected[where])} "
            "threads arrived)"
        )

    def select(self, pairs: NDArray[np.intp]) -> BarrierWait:
        """The same wait of some pairs."""
        return BarrierWait(
            self.barriers, self.cta[pairs], self.ident[pairs], self.before[pairs], self.index
        )
