"""Progressions and ablations: what each step of a ladder, or one knob, brings."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import median

from flashsmith.base.fields import value_text
from flashsmith.bench.ladder import KNOB, LADDER
from flashsmith.kernels import KernelConfig
from flashsmith.kernels.varying import changed, varying
from flashsmith.measure.record import Record
from flashsmith.problem.attention import AttentionProblem
from flashsmith.report.contenders import (
    COLOURS,
    REGIMES,
    config_of,
    length_text,
    mask_text,
    problem_text,
    regime_of,
    runs_of,
    tflops_of,
)
from flashsmith.report.figure import Figure, hover, spread, ticks
from flashsmith.report.table import Cell, Table, number

Steps = tuple[KernelConfig, ...]


def ladders(records: Sequence[Record]) -> list[Table]:
    """What each step of a progression brings, a table for every ladder, a column for every run."""
    newest: dict[tuple[Steps, object, str], list[Record]] = {}
    timed = [r for r in records if r.what["suite"] == LADDER and not r.result.get("void")]
    for run in runs_of(timed):
        steps = tuple(c for r in run if (c := config_of(str(r.what["name"]))) is not None)
        if len(steps) == len(run) > 1:
            newest[steps, run[0].problem, regime_of(run[0])] = run
    found: dict[Steps, list[list[Record]]] = {}
    for (steps, _, _), run in newest.items():
        found.setdefault(steps, []).append(run)
    return [_ladder(steps, runs) for steps, runs in found.items()]


def _ladder(steps: Steps, runs: list[list[Record]]) -> Table:
    """The bars are of the run over the longest problem."""
    runs = sorted(runs, key=lambda run: (run[0].problem.k_len, regime_of(run[0])))
    adds = ["the start", *(changed(a, b) for a, b in pairwise(steps))]
    rows = []
    for n, text in enumerate(adds):
        cells = [Cell(f"{n + 1}."), Cell(text)]
        for run in runs:
            gain = f"{_gain(run[n - 1], run[n]):.2f}×" if n else ""
            cells += [number(f"{tflops_of(run[n]):.0f}"), number(gain)]
        rows.append((*cells, _bar(runs[-1], n)))
    problems = [run[0].problem for run in runs]
    is_one_kind = len({(p.d_head, p.causal) for p in problems}) == 1
    heads = ["", "adds"]
    for run, problem in zip(runs, problems, strict=True):
        where = length_text(problem) if is_one_kind else problem_text(problem)
        loaded = "" if regime_of(run[0]) == "burst" else f", {regime_of(run[0])}"
        heads += [f"TFLOP/s at {where}{loaded}", "× before"]
    regimes = dict.fromkeys(REGIMES.get(regime_of(run[0]), regime_of(run[0])) for run in runs)
    total = _gain(runs[-1][0], runs[-1][-1])
    reads = (
        f"All steps: {varying(steps).caption}. × before: times as fast as the step before; a step "
        f"below 1 costs here and prepares another. {_where(problems)}"
        f"{_sentence('; '.join(regimes))}."
    )
    title = f"{steps[0].NAME}: {len(steps)} steps, together {total:.2f} times as fast"
    bars = f"from the step before to this one, at {length_text(problems[-1])}"
    return Table(title, reads, (*heads, bars), tuple(rows))


def _where(problems: Sequence[AttentionProblem]) -> str:
    """Width and mask, where all runs share them."""
    kinds = {(p.d_head, mask_text(p)) for p in problems}
    return (
        f"d_head {problems[0].d_head}, {mask_text(problems[0])} mask. " if len(kinds) == 1 else ""
    )


def _bar(run: Sequence[Record], n: int) -> Cell:
    top = max(map(tflops_of, run))
    before, after = (100 * tflops_of(r) / top for r in (run[max(n - 1, 0)], run[n]))
    kind = "step" if n == 0 else "step good" if after >= before else "step bad"
    return Cell("", kind=kind, bar=(0 if n == 0 else before, after))


def _gain(before: Record, after: Record) -> float:
    """Times as fast: from the ratios to the first step where rounds were compared."""
    if "ratio" in before.result and "ratio" in after.result:
        return float(after.result["ratio"]) / float(before.result["ratio"])
    return float(before.result["median_us"]) / float(after.result["median_us"])


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}"


def knobs(records: Sequence[Record]) -> list[Figure]:
    """One knob through its values over lengths: how many times as fast it makes a kernel."""
    suites = dict.fromkeys(str(r.what["suite"]) for r in records)
    found = [
        _knob([r for r in records if r.what["suite"] == suite and not r.result.get("void")], suite)
        for suite in suites
        if suite.startswith(KNOB)
    ]
    return [figure for figure in found if figure is not None]


def _knob(records: Sequence[Record], suite: str) -> Figure | None:
    knob = suite.removeprefix(KNOB)
    points: dict[str, dict[int, Record]] = {}  # by value and length
    configs: dict[str, KernelConfig] = {}
    for record in records:
        config = config_of(str(record.what["name"]))
        if config is not None and knob in config.knobs():
            value = value_text(getattr(config, knob))
            points.setdefault(value, {})[record.problem.q_len] = record
            configs[value] = config
    if len(points) < 2:
        return None
    # Against the first of its legal values: what switching a flag on, or a larger value, brings.
    legal = [value_text(value) for value in next(iter(configs.values())).knobs()[knob].values]
    base, *others = sorted(points, key=legal.index)
    figure, gains = Figure(), []
    for n, value in enumerate(others):
        lengths = sorted(set(points[value]) & set(points[base]))
        ratios = [_over(points[value][length], points[base][length]) for length in lengths]
        gains += [ratio for ratio, _, _ in ratios]
        figure.add(
            "scatter",
            x=lengths,
            y=[round(ratio, 4) for ratio, _, _ in ratios],
            error_y=spread(ratios),
            mode="lines+markers",
            line={"color": COLOURS[n % len(COLOURS)]},
            text=[hover(f"{ratio:.3f} times as fast") for ratio, _, _ in ratios],
            hovertemplate="%{x}: %{text}<extra></extra>",
            **({"name": f"{knob} {value}"} if len(others) > 1 else {}),
        )
    if not gains:
        return None
    lengths = sorted({length for found in points.values() for length in found})
    figure.level(1)
    figure.axis("x", title="sequence length, tokens", type="log", **ticks(lengths))
    without = "without it" if base == "False" else f"with {knob} {base}"
    figure.axis("y", title=f"times as fast as {without}")
    word = changed(configs[base], configs[others[0]]) if base == "False" else knob
    title = f"What {word} brings: {min(gains):.2f} to {max(gains):.2f} times the speed"
    shared = varying(list(configs.values())).caption
    middle = f"{median(gains):.2f} in the median. Whiskers: middle three fifths of the rounds."
    return figure.titled(title, f"{_sentence(middle)} All: {shared}.")


def _over(record: Record, base: Record) -> tuple[float, float | None, float | None]:
    """The ratio to the base, with its spread where the rounds were compared with one of the two."""
    r, b = record.result, base.result
    if not {"ratio", "ratio_p20", "ratio_p80"} <= set(r) & set(b):
        return float(b["median_us"]) / float(r["median_us"]), None, None
    ratio = float(r["ratio"]) / float(b["ratio"])
    low = float(r["ratio_p20"]) / float(b["ratio_p80"])
    return ratio, low, float(r["ratio_p80"]) / float(b["ratio_p20"])
