"""How `flashsmith results` sets two files side by side: times, picks, or a benchmark's ratios."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from flashsmith.base.errors import ArgumentError
from flashsmith.bench.agreement import Agreement, agreements
from flashsmith.bench.versus import GEMM
from flashsmith.cli.output import Row, note
from flashsmith.problem.text import problem_text
from flashsmith.report.sources import ReportData, gather
from flashsmith.tuner.store.exchange import differences
from flashsmith.tuner.store.measurement import Measurement
from flashsmith.tuner.store.picks import ALLOWED_GAP, compare_picks


def compared(action: str, before: Path, after: Path) -> tuple[str, list[Row]]:
    """A title and the rows of `diff` or `picks`; the verdict is said beside them."""
    old, new = _read(before), _read(after)
    if old.measurements and new.measurements:
        if action == "picks":
            return _picks(old.measurements, new.measurements)
        rows = _difference_rows(old.measurements, new.measurements)
        return f"{len(rows)} differences", rows
    if action == "diff" and old.records and new.records:
        return _ratios(agreements(old.records, new.records))
    wanted = "two results of `tune`" + (" or two records of `bench`" if action == "diff" else "")
    raise ArgumentError(
        f"{before} and {after} cannot be compared: {action} takes {wanted}; give two of a kind."
    )


def _read(path: Path) -> ReportData:
    if not path.exists():
        raise ArgumentError(f"{path} does not exist; give a results file or a JSON lines file.")
    return gather([path])


def _difference_rows(before: Sequence[Measurement], after: Sequence[Measurement]) -> list[Row]:
    return [
        {
            "config": d.config,
            "problem": problem_text(d.problem),
            "before_us": d.before_us,
            "after_us": d.after_us,
            "ratio": d.ratio,
        }
        for d in differences(before, after)
    ]


def _picks(before: Sequence[Measurement], after: Sequence[Measurement]) -> tuple[str, list[Row]]:
    pairs = compare_picks(before, after)
    same = sum(pair.before == pair.after for pair in pairs)
    gaps = [pair.gap for pair in pairs if pair.before != pair.after]
    near = sum(pair.agrees for pair in pairs) - same
    widest = max((gap for gap in gaps if gap is not None), default=0.0)
    verdict = "agree" if same + near == len(pairs) else "do NOT agree"
    note(
        f"{len(pairs)} problems that both tuned: {same} with the same pick, {near} with another "
        f"that differs by less than {ALLOWED_GAP:.0%} as measured (at most {widest:.2%}); the "
        f"runs {verdict}."
    )
    rows: list[Row] = [
        {
            "problem": problem_text(pair.problem),
            "before": pair.before,
            "after": pair.after if pair.after != pair.before else "the same",
            "gap_before": _rounded(pair.gap_before),
            "gap_after": _rounded(pair.gap_after),
            "agrees": pair.agrees,
        }
        for pair in pairs
    ]
    return "what two tuning runs picked", rows


def _ratios(found: Sequence[Agreement]) -> tuple[str, list[Row]]:
    ours = [one for one in found if one.name != GEMM]
    apart = sum(not one.agrees for one in ours)
    verdict = "every ratio agrees" if not apart else f"{apart} do NOT agree"
    note(
        f"{len(ours)} ratios that both runs have: {verdict} within the spread that the runs "
        f"state (the fifths of the rounds, moved apart by what the control was off)."
    )
    rows: list[Row] = [
        {
            "contender": one.name,
            "problem": problem_text(one.problem),
            "regime": one.regime,
            **{f"before_{k}": v for k, v in _interval(one, earlier=True).items()},
            **{f"after_{k}": v for k, v in _interval(one, earlier=False).items()},
            "agrees": one.agrees,
        }
        for one in ours
    ]
    return "times as fast as the first contender, in two runs", rows


def _interval(one: Agreement, *, earlier: bool) -> dict[str, float]:
    stated = one.before if earlier else one.after
    return {
        "ratio": round(stated.ratio, 4),
        "low": round(stated.low, 4),
        "high": round(stated.high, 4),
    }


def _rounded(gap: float | None) -> float | None:
    return None if gap is None else round(gap, 5)
