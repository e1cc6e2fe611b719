"""The report in words: who won, by how much, and what could not be shown."""

from __future__ import annotations

from collections.abc import Sequence

from flashsmith.measure.record import Record
from flashsmith.measure.statistics import geometric_mean
from flashsmith.report.charts import OURS, contender, fastest_by_shape, problem_text
from flashsmith.report.sources import ReportData
from flashsmith.tuner.measurement import Measurement
from flashsmith.tuner.outcome import Timed, Verified


def sentences(data: ReportData) -> list[str]:
    """What a reader should know before the charts."""
    return [
        f"From {data.source}.",
        *_against_peers(data.records),
        *_winners(data.measurements),
        *_verified(data.measurements),
    ]


def _against_peers(records: Sequence[Record]) -> list[str]:
    groups = fastest_by_shape([r for r in records if not r.result.get("void")])
    ratios: dict[str, list[float]] = {}
    for group in groups.values():
        if OURS not in group:
            continue
        ours = group[OURS].result["median_us"]
        for name, record in group.items():
            if name != OURS:
                ratios.setdefault(name, []).append(record.result["median_us"] / ours)
    return [
        f"{geometric_mean(found):.3f} times as fast as {name} in the geometric mean over "
        f"{len(found)} shapes (least {min(found):.3f}, most {max(found):.3f})."
        for name, found in sorted(ratios.items())
    ]


def _winners(measurements: Sequence[Measurement]) -> list[str]:
    timed = [m for m in measurements if isinstance(m.outcome, Timed)]
    found = []
    for problem in dict.fromkeys(m.key.problem for m in timed):
        latest = {m.key.config: m for m in timed if m.key.problem == problem}
        times = sorted((_us(m), config) for config, m in latest.items())
        margin = f", {times[1][0] / times[0][0] - 1:.1%} ahead of the next" if times[1:] else ""
        found.append(f"{problem_text(problem)}: {times[0][1]}, {times[0][0]:.1f} µs{margin}.")
    return found


def _verified(measurements: Sequence[Measurement]) -> list[str]:
    right = [m for m in measurements if isinstance(m.outcome, Verified)]
    if not right:
        return []
    classes = {m.outcome.fingerprint for m in right if isinstance(m.outcome, Verified)}
    return [
        f"{len(right)} candidates ran in the emulator and were right; their outputs fall into "
        f"{len(classes)} classes of equal bits. Nothing was timed: there was no GPU."
    ]


def missing(data: ReportData) -> list[str]:
    """What the page leaves out because the data do not hold it."""
    gaps = []
    if not any(contender(r) != OURS for r in data.records):
        gaps.append("no peers were measured (`flashsmith bench`)")
    if not any(r.what["suite"] == "progression" for r in data.records):
        gaps.append("no ladder was measured (`flashsmith progression -o FILE`)")
    if not data.measurements:
        gaps.append("nothing was tuned (`flashsmith tune`)")
    elif not any(isinstance(m.outcome, Timed) for m in data.measurements):
        gaps.append("nothing was timed, there was no GPU")
    return gaps


def _us(measurement: Measurement) -> float:
    assert isinstance(measurement.outcome, Timed)
    return measurement.outcome.median_us
