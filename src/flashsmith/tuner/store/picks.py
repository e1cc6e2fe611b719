"""What two tuning runs picked for the same problems, and how far apart their picks are."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from flashsmith.problem.attention import AttentionProblem
from flashsmith.tuner.store.measurement import Measurement
from flashsmith.tuner.store.outcome import Timed

ALLOWED_GAP = 0.01  # picks that differ by less are as good as each other
# Times of one protocol were taken side by side; the later one in more rounds.
_PROTOCOLS = ("final", "race", "screen")
Where = tuple[str, AttentionProblem]  # GPU and problem
_Times = dict[tuple[Where, str, str], float]  # by where, configuration and protocol


@dataclass(frozen=True, slots=True)
class PickPair:
    """One problem that both runs tuned."""

    problem: AttentionProblem
    before: str  # short forms
    after: str
    gap_before: float | None  # how much longer the later pick took in the earlier run
    gap_after: float | None  # and the earlier one in the later run

    @property
    def gap(self) -> float | None:
        """The larger of the two, whichever way it points; None where no run timed both."""
        known = [abs(gap) for gap in (self.gap_before, self.gap_after) if gap is not None]
        return max(known, default=None)

    @property
    def agrees(self) -> bool:
        """Whether the picks are the same, or measured to be nearly as fast."""
        return self.gap is not None and self.gap < ALLOWED_GAP


def picks_of(measurements: Iterable[Measurement]) -> dict[Where, str]:
    """The configuration that a choice would take for each problem: the fastest choosable."""
    best: dict[Where, tuple[float, str]] = {}
    for m in measurements:
        if m.gate and isinstance(m.outcome, Timed):
            where = (m.key.gpu, m.key.problem)
            found = (m.outcome.median_us, m.key.config)
            best[where] = min(best.get(where, found), found)
    return {where: config for where, (_, config) in best.items()}


def compare_picks(before: Iterable[Measurement], after: Iterable[Measurement]) -> list[PickPair]:
    """The picks of problems that both runs tuned, with each run's own times of both."""
    before, after = list(before), list(after)
    earlier, later = picks_of(before), picks_of(after)
    earlier_us, later_us = _times(before), _times(after)
    return [
        PickPair(
            where[1],
            pick,
            later[where],
            _gap(earlier_us, where, pick, later[where]),
            _gap(later_us, where, later[where], pick),
        )
        for where, pick in earlier.items()
        if where in later
    ]


def _times(measurements: Iterable[Measurement]) -> _Times:
    return {
        ((m.key.gpu, m.key.problem), m.key.config, m.key.protocol): m.outcome.median_us
        for m in measurements
        if isinstance(m.outcome, Timed)
    }


def _gap(times: _Times, where: Where, pick: str, other: str) -> float | None:
    """How much longer `other` took than `pick`, side by side in one run."""
    if pick == other:
        return 0.0
    for protocol in _PROTOCOLS:
        mine = times.get((where, pick, protocol))
        theirs = times.get((where, other, protocol))
        if mine is not None and theirs is not None:
            return theirs / mine - 1
    return None
