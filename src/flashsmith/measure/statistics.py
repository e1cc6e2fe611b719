"""What a list of times is summed up to: median, spread, and ratios taken round by round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flashsmith.base.errors import ArgumentError


@dataclass(frozen=True, slots=True)
class Summary:
    """Median and spread of a sample."""

    median: float
    p20: float
    p80: float
    rounds: int

    @property
    def spread(self) -> float:
        """How wide the middle three fifths are, relative to the median."""
        return (self.p80 - self.p20) / self.median if self.median else 0.0


def summarize(sample: Sequence[float]) -> Summary:
    """The summary of a sample that is not empty."""
    if not sample:
        raise ArgumentError("A summary needs at least one round; none was measured.")
    p20, median, p80 = (float(x) for x in np.quantile(np.asarray(sample), (0.2, 0.5, 0.8)))
    return Summary(median, p20, p80, len(sample))


def ratio_by_round(baseline: Sequence[float], times: Sequence[float]) -> Summary:
    """How many times as fast as `baseline`: the summary of the ratios within each round.

    Both sides of a ratio were measured a moment apart, so that what moves the whole GPU (power,
    temperature) cancels; the ratio of two medians would keep it.
    """
    if len(baseline) != len(times):
        raise ArgumentError(
            f"{len(baseline)} and {len(times)} rounds were given; ratios need the same rounds."
        )
    return summarize([a / b for a, b in zip(baseline, times, strict=True)])


def geometric_mean(values: Sequence[float]) -> float:
    """The mean for ratios."""
    if not values:
        raise ArgumentError("A geometric mean needs at least one value; none was given.")
    return float(np.exp(np.mean(np.log(np.asarray(values, np.float64)))))
