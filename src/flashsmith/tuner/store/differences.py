"""What changed between two sets of measurements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from flashsmith.problem.attention import AttentionProblem
from flashsmith.tuner.store.measurement import Measurement, MeasurementKey
from flashsmith.tuner.store.outcome import Timed


@dataclass(frozen=True, slots=True)
class Difference:
    """One configuration on one problem in two sets of measurements."""

    config: str
    problem: AttentionProblem
    before_us: float | None
    after_us: float | None

    @property
    def ratio(self) -> float | None:
        """After over before; below 1 is faster."""
        if self.before_us is None or self.after_us is None:
            return None
        return self.after_us / self.before_us


def differences(before: Sequence[Measurement], after: Sequence[Measurement]) -> list[Difference]:
    """What changed between two sets, matched by GPU, configuration, problem and protocol."""
    old, new = _times(before), _times(after)
    return [
        Difference(key.config, key.problem, old.get(key), new.get(key))
        for key in sorted({*old, *new}, key=lambda key: (key.config, str(key.problem)))
        if old.get(key) != new.get(key)
    ]


def _times(measurements: Sequence[Measurement]) -> dict[MeasurementKey, float]:
    """Median times under keys that forget driver, compiler and code: the things that changed."""
    times = {}
    for m in measurements:
        if isinstance(m.outcome, Timed):
            k = m.key
            same = replace(k, driver="", compiler="", code="")
            times[same] = m.outcome.median_us
    return times
