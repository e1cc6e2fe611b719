"""Which unit runs next; what happens at branches, waits, stalls and the end of warps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from flashsmith.emulator.checks.undefined import Undefined, require_defined_value
from flashsmith.emulator.machine.convergence import Convergence
from flashsmith.emulator.machine.segments import (
    EXIT,
    FORKED,
    Segment,
    meeting_points,
    quiet_segments,
)
from flashsmith.emulator.machine.unit import Unit, Wait, merge
from flashsmith.emulator.machine.values import Value

if TYPE_CHECKING:
    from flashsmith.emulator.machine.chunk import Chunk

SegmentFunction = Callable[[Unit, list[Value], Value, "Chunk"], int]
LIVELOCK_ROUNDS = 2000  # rounds in which every unit only spins
# Segments that a unit runs with no effect on anything but its registers; in random schedules, which
# take a segment at a time, a tenth.
LIVELOCK_SEGMENTS = 1_000_000
APART = 0.2  # chance that ctas of a unit part, in a step of a random schedule
TURN_SEGMENTS = 20_000  # after which a unit that has not waited lets the others run
MOST_SEGMENTS = 200_000_000  # of one chunk; a second of emulation runs a few hundred thousand


class Scheduler:
    """Runs the units of one chunk to their end."""

    def __init__(
        self,
        chunk: Chunk,
        functions: list[SegmentFunction],
        seed: int | None,
        segments: list[Segment],
        registers: int,
    ) -> None:
        self.chunk = chunk
        self.functions = functions
        self.registers = registers
        self.meeting_points = meeting_points(segments)  # parts of a warp wait here for each other
        self.quiet = quiet_segments(segments)
        self.segments_run = 0
        self.acted = False  # whether the last step did more than to look
        self.most_idle = LIVELOCK_SEGMENTS // (1 if seed is None else 10)
        self.random = np.random.default_rng(seed) if seed is not None else None
        self.units: list[Unit] = []
        self.counts = [0] * len(functions)  # warps that ran each segment

    def run(self) -> None:
        """Runs all ctas until every warp has ended; raises on deadlock."""
        self.units = self.chunk.first_units(self.registers, self.random is not None)
        spins = 0
        while self.units:
            unit = self._next()
            if unit is None or unit.yielded:  # nobody can run, or who does only polls
                if self._unblock():
                    continue
                if unit is None:
                    self.chunk.deadlock(self.units, "deadlock")
                if self.random is None:
                    # Each polls once before the first does so again: they may stand at loops of
                    # their own, and the one that can go on need not be the first in the program.
                    for other in self.units:
                        other.yielded = False
            unit.yielded = self.acted = False
            self._step(unit)
            spins = 0 if self.acted else spins + unit.yielded
            if spins > LIVELOCK_ROUNDS * (1 + len(self.units)):
                self.chunk.deadlock(self.units, "livelock")
            if unit.idle > self.most_idle or self.segments_run > MOST_SEGMENTS:
                self.chunk.deadlock([unit], "livelock")
            if self.chunk.flights:
                self.chunk.land_some(self.random)
            if self.chunk.ended:
                self._begin_later_ctas()
        self.chunk.land_all()
        if self.chunk.sums is not None:
            self.chunk.sums.settle_all()

    def _begin_later_ctas(self) -> None:
        slots = self.chunk.restart()
        if len(slots):
            split = self.random is not None
            self.units += self.chunk.first_units(self.registers, split, slots)

    # -- choosing -----------------------------------------------------------------------------

    def _next(self) -> Unit | None:
        self._converge()
        # All waits that are over end first: who stands at a barrier asks where the others are.
        for unit in self.units:
            wait = unit.wait
            if wait is not None and not (0 <= wait.looked == wait.epoch()):
                self._end_wait(unit, wait)  # something has ended since the last look
        self._align()
        meeting = self.meeting_points
        ready = [
            u
            for u in self.units
            if u.wait is None and (u.mask is None or u.pc not in meeting or self._together(u))
        ]
        if not ready:
            return None
        eager = [u for u in ready if not u.yielded] or ready
        if self.random is not None:
            chosen = eager[int(self.random.integers(len(eager)))]
            if chosen.yielded:  # all only poll: the one that can go on may stand anywhere
                return self._some_ctas(self._joined(chosen, ready))
            warp = chosen.first_warp
            # Parts of one warp come together again where they can: the one behind goes first.
            parts = [u for u in eager if u.first_warp == warp]
            chosen = parts[0] if len(parts) == 1 else min(parts, key=lambda u: u.pc)
            return self._some_ctas(self._joined(chosen, ready))
        return self._joined(min(eager, key=lambda u: u.pc), ready)

    def _some_ctas(self, unit: Unit) -> Unit:
        """Now and then a part of the ctas goes on alone, where it matters who is ahead."""
        assert self.random is not None
        if not self.chunk.traits.depends_on_pace or self.random.random() > APART:
            return unit
        ctas = unit.cta if unit.pairs == 1 else np.unique(unit.cta)
        drawn = self.random.random(len(ctas)) < 0.5
        if drawn.all() or not drawn.any():
            return unit
        ahead = np.isin(unit.cta, ctas[drawn])
        self.units = [u for u in self.units if u is not unit]
        live = self.chunk.live[unit.pc]
        parts = [split_pairs(unit, np.flatnonzero(some), live) for some in (ahead, ~ahead)]
        parts[1].yielded = unit.yielded
        self.units += parts
        return parts[0]

    @staticmethod
    def _end_wait(unit: Unit, wait: Wait) -> None:
        epoch = wait.epoch()
        if wait.ready().all():
            unit.wait = None
            unit.moved = True
            wait.finish(unit)
        else:
            wait.looked = epoch

    def _together(self, unit: Unit) -> bool:
        """Whether all lanes of the unit's warps that have not ended are at the same instruction."""
        mine, pc = unit.warps, unit.pc
        return not any(
            (other.pc != pc or other.wait is not None)
            and other is not unit
            and not mine.isdisjoint(other.warps)
            for other in self.units
        )

    def _joined(self, unit: Unit, ready: list[Unit]) -> Unit:
        """The unit, merged with all others that stand at the same place."""
        same = [u for u in ready if u.pc == unit.pc]
        if self.random is not None:
            # Single warps keep their own order: only parts of the same warp come together.
            same = [u for u in same if u.first_warp == unit.first_warp]
        return self._merged(same) if len(same) > 1 else unit

    def _merged(self, same: list[Unit]) -> Unit:
        merged = merge(same, self.chunk.live[same[0].pc])
        self.units = [u for u in self.units if all(u is not s for s in same)]
        self.units.append(merged)
        return merged

    def _align(self) -> None:
        """Parts of a warp that stand at one barrier are apart from other warps' parts.

        Else one of them could go on alone: it finds the other there, which has to wait because
        another warp's lanes in it have not all come.
        """
        standing = [u for u in self.units if u.mask is not None and self._stands_at_barrier(u)]
        for unit in standing if len(standing) > 1 else ():
            if not any(u is unit for u in self.units):
                continue
            mine = unit.cta * 64 + unit.warp  # as `Unit.warps`
            for other in list(self.units):
                if other is unit or other.pc != unit.pc or not self._stands_at_barrier(other):
                    continue
                shared = np.isin(other.cta * 64 + other.warp, mine)
                if shared.any() and not shared.all():
                    self.units = [u for u in self.units if u is not other]
                    for some in (shared, ~shared):
                        part = split_pairs(other, np.flatnonzero(some), self.chunk.live[other.pc])
                        part.yielded = other.yielded
                        self.units.append(part)

    def _stands_at_barrier(self, unit: Unit) -> bool:
        return unit.mask is not None and unit.wait is None and unit.pc in self.meeting_points

    def _converge(self) -> None:
        """Lanes that wait for the rest of their warp are joined by those that have arrived.

        Units that have not moved since the last look were not joined then, nor are they now.
        """
        moved = [u for u in self.units if u.moved]
        for unit in moved:
            unit.moved = False
        arrived = [u for u in moved if u.wait is None or isinstance(u.wait, Convergence)]
        for waiting in [u for u in self.units if isinstance(u.wait, Convergence)]:
            if not any(
                u.pc == waiting.pc and not waiting.warps.isdisjoint(u.warps) for u in arrived
            ):
                continue
            if not any(u is waiting for u in self.units):
                continue
            same = [
                u
                for u in self.units
                if u.pc == waiting.pc
                and (u.wait is None or isinstance(u.wait, Convergence))
                and not waiting.warps.isdisjoint(u.warps)
            ]
            if len(same) > 1:
                self._merged(same)

    # -- running ------------------------------------------------------------------------------

    def _step(self, unit: Unit) -> None:
        """Runs a unit until it waits, ends, forks, or another should go first."""
        unit.moved = True
        functions, counts, chunk, alone = self.functions, self.counts, self.chunk, len(self.units)
        pc, registers, mask, pairs = unit.pc, unit.R, unit.mask, unit.pairs
        once, quiet, turns = self.random is not None, self.quiet, 0
        others = () if once else (u for u in self.units if u is not unit and u.wait is None)
        limit = min((u.pc for u in others), default=1 << 60)
        while True:
            counts[pc] += pairs
            unit.pc, was_quiet = pc, quiet[pc]
            turns += 1
            pc = functions[pc](unit, registers, mask, chunk)
            if was_quiet and not unit.yielded:
                unit.idle += 1
            else:
                unit.idle = 0
                self.acted = self.acted or not unit.yielded
            if pc < 0:
                self._ended(unit, pc)
                break
            meets = mask is not None and pc in self.meeting_points
            if unit.wait is not None:
                unit.pc = pc
                if isinstance(unit.wait, Convergence):
                    counts[pc] -= pairs  # the segment runs again once the warp is together
                    break
                if not unit.wait.ready().all():
                    chunk.count_wait(unit)
                    break
                wait, unit.wait = unit.wait, None
                wait.finish(unit)
                meets = mask is not None  # the rest of the warp may have been let go with it
            if once or meets or unit.yielded or (alone > 1 and pc >= limit) or chunk.flights:
                unit.pc = pc
                break
            if turns == TURN_SEGMENTS:
                unit.pc, unit.yielded = pc, True
                break
        self.segments_run += turns

    def _ended(self, unit: Unit, pc: int) -> None:
        self.units = [u for u in self.units if u is not unit]
        if pc == FORKED:
            self.units.extend(self.chunk.forks)
            self.chunk.forks = []
        elif pc == EXIT:
            self.chunk.exited(unit)

    # -- stalls -------------------------------------------------------------------------------

    def _unblock(self) -> bool:
        """Copies land, or the ready part of a unit goes on; False if there is neither."""
        if self.chunk.flights:
            self.chunk.land_all()
            return True
        for unit in self.units:
            if unit.wait is None:
                continue
            ready = unit.wait.ready()
            if ready.any():
                self.units = [u for u in self.units if u is not unit]
                for part in (np.flatnonzero(ready), np.flatnonzero(~ready)):
                    self.units.append(split_pairs(unit, part, self.chunk.live[unit.pc]))
                return True
        return any(self._part_whole_warps(unit) for unit in self.units)

    def _part_whole_warps(self, unit: Unit) -> bool:
        """At a barrier, warps that are all there go on without those that are not."""
        if not self._stands_at_barrier(unit):
            return False
        elsewhere = [
            other.cta * 64 + other.warp
            for other in self.units
            if other is not unit and (other.pc != unit.pc or other.wait is not None)
        ]
        apart = np.isin(
            unit.cta * 64 + unit.warp, np.concatenate([np.empty(0, np.intp), *elsewhere])
        )
        if apart.all() or not apart.any():
            return False
        self.units = [u for u in self.units if u is not unit]
        for part in (np.flatnonzero(~apart), np.flatnonzero(apart)):
            self.units.append(split_pairs(unit, part, self.chunk.live[unit.pc]))
        return True


def split_pairs(unit: Unit, pairs: NDArray[np.intp], live: Sequence[int]) -> Unit:
    """The unit of some pairs, which keeps waiting for what the whole unit waits for."""
    if unit.mask is None:
        return unit.select(pairs, None, live)
    mask = unit.mask.reshape(-1, 32)[pairs].reshape(-1)
    return unit.select(pairs, None if mask.all() else mask, live)


def branch(unit: Unit, condition: Value, taken: int, fall: int, chunk: Chunk, index: int) -> int:
    """The next segment after a conditional branch; divergent lanes become units of their own."""
    if condition.ndim == 0:
        return taken if condition else fall
    mask = unit.mask
    if isinstance(condition, Undefined):
        require_defined_value(chunk, unit, mask, condition, index)
    if mask is None:
        if condition.all():
            return taken
        if not condition.any():
            return fall
        yes, no = condition, ~condition
    else:
        yes, no = condition & mask, ~condition & mask
        if not no.any():
            return taken
        if not yes.any():
            return fall
    for active, pc in ((yes, taken), (no, fall)):
        part = unit.fork(active, pc, chunk.live[pc] if pc >= 0 else ())
        assert part is not None
        if pc == EXIT:
            chunk.exited(part)
        else:
            chunk.forks.append(part)
    return FORKED
