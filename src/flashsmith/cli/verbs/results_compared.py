"""How `flashsmith results` sets two files side by side: times, picks, or a benchmark's ratios."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from flashsmith.base.errors import ArgumentError
from flashsmith.bench.agreement import Agreement, agreements
from flashsmith.bench.versus import GEMM
from flashsmith.cli.output import Row, note
from flashsmith.measure.record import Record
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.text import problem_text
from flashsmith.report.contenders import is_baseline, is_ours, regime_of
from flashsmith.report.sources import ReportData, gather
from flashsmith.tuner.store.differences import Difference, differences
from flashsmith.tuner.store.measurement import Measurement
from flashsmith.tuner.store.picks import ALLOWED_GAP, PickPair, compare_picks


@dataclass(frozen=True, slots=True)
class Compared:
    """Two files side by side; `columns` are those that a terminal has room for."""

    title: str
    rows: list[Row]
    columns: Sequence[str] | None = None


def compared(action: str, before: Path, after: Path) -> Compared:
    """What `diff` or `picks` shows; the verdict is said beside it."""
    old, new = _read(before), _read(after)
    if old.measurements and new.measurements:
        if action == "picks":
            return _picks(old.measurements, new.measurements)
        return _differences(old.measurements, new.measurements)
    if action == "diff" and old.records and new.records:
        return _ratios(agreements(old.records, new.records), _baselines(new.records))
    wanted = "two results of `tune`" + (" or two records of `bench`" if action == "diff" else "")
    raise ArgumentError(
        f"{before} and {after} cannot be compared: {action} takes {wanted}; give two of a kind."
    )


def _read(path: Path) -> ReportData:
    if not path.exists():
        raise ArgumentError(f"{path} does not exist; give a results file or a JSON lines file.")
    return gather([path])


def _differences(before: Sequence[Measurement], after: Sequence[Measurement]) -> Compared:
    rows: list[Row] = [
        {
            "config": d.config,
            "problem": problem_text(d.problem),
            "before_us": d.before_us,
            "after_us": d.after_us,
            "times_as_fast": _times_as_fast(d),
        }
        for d in differences(before, after)
    ]
    title = (
        f"{len(rows)} times differ; times_as_fast is before over after: above 1, the second file "
        f"is faster"
    )
    return Compared(title, rows)


def _times_as_fast(d: Difference) -> float | None:
    """As everywhere: above 1 is faster."""
    return d.before_us / d.after_us if d.before_us and d.after_us else None


def _picks(before: Sequence[Measurement], after: Sequence[Measurement]) -> Compared:
    pairs = compare_picks(before, after)
    _say_verdict(pairs)
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
    return Compared("what two tuning runs picked", rows)


def _say_verdict(pairs: Sequence[PickPair]) -> None:
    if not pairs:
        note("The two files have no tuned problem in common; nothing can be compared.")
        return
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


# Who the ratios of a problem and regime are against.
Baselines = Mapping[tuple[AttentionProblem, str], set[str]]


def _baselines(records: Sequence[Record]) -> Baselines:
    found: dict[tuple[AttentionProblem, str], set[str]] = {}
    for record in records:
        if is_baseline(record):
            key = (record.problem, regime_of(record))
            found.setdefault(key, set()).add(str(record.what["name"]))
    return found


def _ratios(found: Sequence[Agreement], baselines: Baselines) -> Compared:
    ours = [one for one in found if one.name != GEMM]
    if not ours:
        note("The two files have no ratio in common; nothing can be compared.")
        return Compared("no ratios", [])
    apart = sum(not one.agrees for one in ours)
    verdict = "every ratio agrees" if not apart else f"{apart} do NOT agree"
    note(
        f"{len(ours)} ratios that both runs have: {verdict} within the spread that the runs "
        f"state (the middle three fifths of the rounds, widened by what the control was off)."
    )
    rows = [_ratio_row(one, baselines) for one in ours]
    columns = ("contender", "against", "problem", "regime", "before_ratio", "after_ratio", "agrees")
    title = "how many times as fast as `against`, in two runs; above 1 is faster"
    return Compared(title, rows, columns)


def _ratio_row(one: Agreement, baselines: Baselines) -> Row:
    """Our speed over the peer's, whichever of the two the run took as its baseline."""
    others = sorted(baselines.get((one.problem, one.regime), set()))
    mine = [name for name in others if is_ours(name)]
    theirs = [name for name in others if not is_ours(name)]
    is_turned = not is_ours(one.name) and bool(mine)
    names = (mine[0], one.name) if is_turned else (one.name, next(iter(theirs + mine), "the first"))
    row: dict[str, object] = {
        "contender": names[0],
        "against": names[1],
        "problem": problem_text(one.problem),
        "regime": one.regime,
    }
    for when, stated in (("before", one.before), ("after", one.after)):
        bounds = (stated.ratio, stated.low, stated.high)
        if is_turned:
            bounds = (1 / stated.ratio, 1 / stated.high, 1 / stated.low)
        for name, value in zip(("ratio", "low", "high"), bounds, strict=True):
            row[f"{when}_{name}"] = round(value, 4)
    return row | {"agrees": one.agrees}


def _rounded(gap: float | None) -> float | None:
    return None if gap is None else round(gap, 5)
