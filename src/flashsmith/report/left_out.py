"""What a page does not show, because its data do not hold it."""

from __future__ import annotations

from flashsmith.bench.ladder import LADDER
from flashsmith.bench.versus import OURS
from flashsmith.measure.interleaved import MIN_ROUNDS
from flashsmith.report.contenders import contender, has_too_few_rounds
from flashsmith.report.sources import ReportData
from flashsmith.tuner.store.outcome import Timed


def left_out(data: ReportData) -> list[str]:
    """A sentence for each thing that is missing, with the command that would bring it."""
    gaps = []
    short = [r for r in data.records if has_too_few_rounds(r)]
    if short:
        suites = ", ".join(sorted({str(r.what["suite"]) for r in short}))
        gaps.append(
            f"{len(short)} records of {suites}: taken in fewer than {MIN_ROUNDS} rounds, too few "
            f"for a ratio."
        )
    void = sum(bool(r.result.get("void")) for r in data.records)
    if void:
        gaps.append(f"{void} records that are void: a kernel against itself was off by over 1 %.")
    if not any(contender(r) != OURS for r in data.records):
        gaps.append("Peers were not measured: `flashsmith bench -o FILE`.")
    if not any(r.what["suite"] == LADDER for r in data.records):
        gaps.append("Steps of a ladder were not measured: `flashsmith bench ladder -o FILE`.")
    if not data.counted:
        gaps.append("Counters were not taken: `flashsmith bench profile -o FILE`.")
    if data.unreached:
        gaps.append(
            f"{data.unreached} candidates were not reached within the budget: the same command "
            f"goes on with them."
        )
    has_times = any(isinstance(m.outcome, Timed) for m in data.measurements)
    if not data.measurements:
        gaps.append("Nothing was tuned: `flashsmith tune`.")
    elif not has_times:
        gaps.append("Nothing was timed: there was no GPU.")
    if not data.places and (has_times or not data.measurements):
        gaps.append(
            "No predicted order stands beside the times: `flashsmith tune predict -o FILE`."
        )
    return gaps
