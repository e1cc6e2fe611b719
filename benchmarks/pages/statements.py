"""Sentences of the docs that follow from records: how good, how repeatable."""

from __future__ import annotations

from collections.abc import Sequence

from flashsmith.bench.agreement import agreements
from flashsmith.bench.versus import GEMM
from flashsmith.measure.record import Record
from flashsmith.report.sources import ReportData
from flashsmith.report.tuning_charts import ranked_problems, times_of
from flashsmith.tuner.run.predict import quality
from flashsmith.tuner.store.measurement import Measurement
from flashsmith.tuner.store.picks import ALLOWED_GAP, compare_picks
from pages.tables import NOT_MEASURED

MANY = 20  # configurations of a problem, from which on an order is worth a correlation


def prediction_statement(data: ReportData) -> str:
    """How good the predicted order is on the times that stand beside it."""
    found = {
        problem: quality([float(place) for place, _, _ in ranked], [us for _, us, _ in ranked])
        for problem, ranked in ranked_problems(times_of(data), data.places).items()
    }
    if not found:
        return NOT_MEASURED
    regret = max(good.top_5_regret for good in found.values())
    text = (
        f"On {len(found)} problems of the committed H200 measurements the worst top-5 regret is "
        f"{regret:.1%}: the best of the five that are predicted best is that much slower than the "
        f"best of all."
    )
    many = [good for good in found.values() if good.count >= MANY]
    if many:
        low, high = (f(good.rank_correlation for good in many) for f in (min, max))
        text += (
            f" On the {len(many)} of them where {min(good.count for good in many)} configurations "
            f"or more were timed, the rank correlation is {low:.2f} to {high:.2f}; where only a "
            f"handful of near equals was, it says little."
        )
    return text


def picks_statement(first: Sequence[Measurement], second: Sequence[Measurement]) -> str:
    """Whether two tuning runs chose the same, or something as fast."""
    pairs = compare_picks(first, second)
    if not pairs:
        return NOT_MEASURED
    same = sum(pair.before == pair.after for pair in pairs)
    others = [pair for pair in pairs if pair.before != pair.after]
    text = (
        f"Two runs over {len(pairs)} problems, each from an empty results file: {same} same picks"
    )
    if others:
        widest = max(pair.gap if pair.gap is not None else float("inf") for pair in others)
        text += f"; where they differ, the two picks are {widest:.2%} apart at most as measured"
    apart = sum(not pair.agrees for pair in pairs)
    if apart:
        text += f", and on {apart} problems by {ALLOWED_GAP:.0%} or more"
    return f"{text}."


def agreement_statement(first: Sequence[Record], second: Sequence[Record]) -> str:
    """Whether two runs of a benchmark agree within the spread that they state."""
    found = [one for one in agreements(first, second) if one.name != GEMM]
    if not found:
        return NOT_MEASURED
    agree = sum(one.agrees for one in found)
    widest = max(abs(one.after.ratio / one.before.ratio - 1) for one in found)
    return (
        f"Two runs of `bench --suite quick`, two processes: {agree} of {len(found)} ratios agree "
        f"within the spread that the runs state; the medians are {widest:.1%} apart at most."
    )
