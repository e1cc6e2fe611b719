"""Charts of progressions and ablations: what each step of a ladder, or one knob, brings."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from flashsmith.bench.ladder import KNOB, LADDER, changes
from flashsmith.kernels import parse_config
from flashsmith.measure.record import Record
from flashsmith.report.contenders import COLOURS, problem_text, regime_of, runs_of
from flashsmith.report.figure import Figure, spread, ticks

_UPRIGHT = 8  # steps whose names stand side by side below the page's width


def ladders(records: Sequence[Record]) -> list[Figure]:
    """What each step of a progression brings, a waterfall of TFLOP/s for every run of one."""
    newest: dict[tuple[object, ...], list[Record]] = {}
    for run in runs_of([r for r in records if r.what["suite"] == LADDER]):
        if len(run) > 1 and not run[0].result.get("void"):
            newest[run[0].problem, regime_of(run[0]), run[0].what["name"]] = run
    return [_waterfall(run) for run in newest.values()]


def _waterfall(steps: Sequence[Record]) -> Figure:
    configs = [parse_config(r.what["name"]) for r in steps]
    adds = ["the start"] + [changes(a, b) for a, b in pairwise(configs)]
    rates = [float(r.result["tflops"]) for r in steps]
    labels = [f"{n}. {_short(text)}" for n, text in enumerate(adds, start=1)]
    figure = Figure()
    figure.add(
        "waterfall",
        x=labels,
        y=[round(rates[0], 1)] + [round(b - a, 1) for a, b in pairwise(rates)],
        measure=["absolute"] + ["relative"] * (len(steps) - 1),
        text=[f"{rate:.0f}" for rate in rates],
        textposition="outside",
        cliponaxis=False,
        customdata=[f"{text}<br>{r.what['name']}" for text, r in zip(adds, steps, strict=True)],
        hovertemplate="%{customdata}<br>%{text} TFLOP/s<extra></extra>",
        increasing={"marker": {"color": COLOURS[2]}},
        decreasing={"marker": {"color": COLOURS[5]}},
        totals={"marker": {"color": COLOURS[0]}},
        connector={"line": {"color": "#888888", "width": 1}},
        showlegend=False,
    )
    slow_fast = [(rate, *_rates_between(r, rate)) for rate, r in zip(rates, steps, strict=True)]
    figure.add(
        "scatter",
        x=labels,
        y=rates,
        error_y=spread(slow_fast),
        mode="markers",
        marker={"size": 1, "color": "#888888"},
        hoverinfo="skip",
        showlegend=False,
    )
    figure.axis("x", tickangle=0 if len(steps) <= _UPRIGHT else -35, tickfont={"size": 11})
    figure.axis("y", title="TFLOP/s", rangemode="tozero")
    where = f"{problem_text(steps[0].problem)}, {regime_of(steps[0])}"
    reads = "TFLOP/s after each step; a step down costs here and prepares another."
    title = f"What each optimisation brings: {configs[0].NAME} ({where})"
    return figure.titled(title, reads, height=520, wide=True)


def _rates_between(record: Record, rate: float) -> tuple[float | None, float | None]:
    """The rates at the slow and the fast end of the rounds."""
    r = record.result
    if "p20_us" not in r or "p80_us" not in r:
        return None, None
    return rate * r["median_us"] / r["p80_us"], rate * r["median_us"] / r["p20_us"]


def _short(text: str) -> str:
    """A knob a line, those that are switched on by their name alone."""
    return text.replace(": True", "").replace(": False", " off").replace(", ", "<br>")


def knobs(records: Sequence[Record]) -> list[Figure]:
    """One knob through its values over lengths: where it pays, and where it costs."""
    suites = dict.fromkeys(str(r.what["suite"]) for r in records)
    return [
        figure
        for suite in suites
        if suite.startswith(KNOB)
        and (figure := _knob([r for r in records if r.what["suite"] == suite], suite))
    ]


def _knob(records: Sequence[Record], suite: str) -> Figure | None:
    knob = suite.removeprefix(KNOB)
    lines: dict[str, dict[int, Record]] = {}
    for record in records:
        if not record.result.get("void"):
            value = str(getattr(parse_config(record.what["name"]), knob))
            lines.setdefault(value, {})[record.what["q_len"]] = record
    if len(lines) < 2:
        return None
    figure = Figure()
    for number, (value, points) in enumerate(lines.items()):
        found = [points[length] for length in sorted(points)]
        ratios = [(r.result["ratio"], r.result["ratio_p20"], r.result["ratio_p80"]) for r in found]
        figure.add(
            "scatter",
            x=sorted(points),
            y=[round(ratio, 4) for ratio, _, _ in ratios],
            error_y=spread(ratios),
            name=f"{knob} = {value}",
            mode="lines+markers",
            line={"color": COLOURS[number % len(COLOURS)]},
        )
    lengths = sorted({length for points in lines.values() for length in points})
    figure.axis("x", title="sequence length", type="log", **ticks(lengths))
    figure.axis("y", title="times as fast as the start")
    return figure.titled(f"What {knob} brings", "Whiskers: the middle three fifths of rounds.")
