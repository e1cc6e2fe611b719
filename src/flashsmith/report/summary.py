"""The report in words: who won, by how much, and what could not be shown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import median

from flashsmith.bench.ladder import LADDER
from flashsmith.bench.versus import OURS
from flashsmith.measure.interleaved import MIN_ROUNDS
from flashsmith.measure.record import Record
from flashsmith.measure.statistics import geometric_mean
from flashsmith.report.contenders import (
    against_peers,
    best_of_ours,
    contender,
    has_too_few_rounds,
    is_comparison,
    problem_text,
    product_tflops,
    runs_of,
)
from flashsmith.report.sources import ReportData
from flashsmith.report.winners import winners
from flashsmith.tuner.store.measurement import Measurement
from flashsmith.tuner.store.outcome import Timed, Verified

_SAID = 4  # winners that are named one by one


def sentences(data: ReportData) -> list[str]:
    """What a reader should know before the charts."""
    return [
        f"From {data.source}.",
        *_against_peers(data.records),
        *_of_the_product(data.records),
        *_winners(data.measurements),
        *_timed(data.measurements),
        *_verified(data.measurements),
        *_predicted_first(data),
        *_counted(data.counted),
    ]


def _counted(counted: Sequence[Record]) -> list[str]:
    busy = [r.result["tensor_pct"] for r in counted if r.result.get("tensor_pct") is not None]
    if not busy:
        return []
    return [
        f"{len(busy)} launches were profiled: their tensor cores are busy {min(busy):.0f} to "
        f"{max(busy):.0f} % of the cycles."
    ]


def _against_peers(records: Sequence[Record]) -> list[str]:
    ratios: dict[tuple[str, str], list[float]] = {}
    for found in against_peers(records):
        ratios.setdefault((found.peer, found.regime), []).append(found.ratio)
    return [
        f"{geometric_mean(found):.3f} times as fast as {peer} in the geometric mean over "
        f"{len(found)} shapes (least {min(found):.3f}, most {max(found):.3f}; {regime})."
        for (peer, regime), found in sorted(ratios.items())
    ]


def _of_the_product(records: Sequence[Record]) -> list[str]:
    """The share of a large matrix product's rate, in runs that measured one beside us."""
    shares = []
    for run in runs_of(records):
        ours = best_of_ours([r for r in run if is_comparison(r)])
        product = product_tflops(run)
        if ours is not None and product is not None:
            shares.append(ours.result["tflops"] / product)
    if not shares:
        return []
    return [
        f"{min(shares):.0%} to {max(shares):.0%} of the rate of a large matrix product in the same "
        f"rounds ({len(shares)} shapes)."
    ]


def _winners(measurements: Sequence[Measurement]) -> list[str]:
    found = winners(measurements)
    if len(found) > _SAID:
        counts = Counter(winner.config for winner in found)
        (favourite, times), rates = counts.most_common(1)[0], [winner.tflops for winner in found]
        margins = sorted(winner.ahead for winner in found if winner.ahead is not None)
        ahead = (
            f" In the median a winner is {median(margins):.1%} ahead of the next."
            if margins
            else ""
        )
        return [
            f"{len(found)} problems were tuned; {len(counts)} configurations win them, at "
            f"{min(rates):.0f} to {max(rates):.0f} TFLOP/s (table below). Most often, on {times} "
            f"of them: {favourite}.{ahead}"
        ]
    return [
        f"{problem_text(w.problem)}: {w.config}, {w.median_us:.1f} µs"
        + (f", {w.ahead:.1%} ahead of the next." if w.ahead is not None else ".")
        for w in found
    ]


def _timed(measurements: Sequence[Measurement]) -> list[str]:
    candidates = {(m.key.config, m.key.problem): m.outcome for m in measurements}
    timed = sum(isinstance(outcome, Timed) for outcome in candidates.values())
    if not timed:
        return []
    others = len(candidates) - timed
    end = f"; {others} could not be, the chart says why" if others else ", all that there were"
    return [f"{timed} candidates were right and timed{end}."]


def _verified(measurements: Sequence[Measurement]) -> list[str]:
    right = [m for m in measurements if isinstance(m.outcome, Verified)]
    if not right:
        return []
    classes = {m.outcome.fingerprint for m in right if isinstance(m.outcome, Verified)}
    return [
        f"{len(right)} candidates ran in the emulator and were right; their outputs fall into "
        f"{len(classes)} classes of equal bits. Nothing was timed: there was no GPU."
    ]


def _predicted_first(data: ReportData) -> list[str]:
    """What is predicted to win, where nothing was timed."""
    verified = {m.key.problem for m in data.measurements if isinstance(m.outcome, Verified)}
    first = {
        problem: config
        for (config, problem), place in data.places.items()
        if place == 1 and problem in verified
    }
    return [
        f"Predicted fastest on {problem_text(problem)}, not measured: {config}."
        for problem, config in list(first.items())[:_SAID]
    ]


def missing(data: ReportData) -> list[str]:
    """What the page leaves out because the data do not hold it."""
    gaps = []
    short = [r for r in data.records if has_too_few_rounds(r)]
    if short:
        suites = ", ".join(sorted({str(r.what["suite"]) for r in short}))
        gaps.append(
            f"{len(short)} records of {suites} were taken in fewer than {MIN_ROUNDS} rounds, too "
            f"few for a ratio"
        )
    if not any(contender(r) != OURS for r in data.records):
        gaps.append("no peers were measured (`flashsmith bench`)")
    if not any(r.what["suite"] == LADDER for r in data.records):
        gaps.append("no ladder was measured (`flashsmith progression -o FILE`)")
    if not data.counted:
        gaps.append("no counters were taken (`flashsmith profile -o FILE`)")
    if not data.measurements:
        gaps.append("nothing was tuned (`flashsmith tune`)")
    elif not any(isinstance(m.outcome, Timed) for m in data.measurements):
        gaps.append("nothing was timed, there was no GPU")
    if not data.places and "nothing was timed, there was no GPU" not in gaps:
        gaps.append("no predicted order stands beside the times (`flashsmith predict -o FILE`)")
    return gaps
