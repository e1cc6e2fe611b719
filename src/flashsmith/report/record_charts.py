"""Charts of timing records: each returns None, or none, where records have nothing to say."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from flashsmith.arch import find_gpu
from flashsmith.bench.ladder import KNOB, LADDER, changes
from flashsmith.bench.versus import OURS
from flashsmith.config import parse_config
from flashsmith.measure.record import Record
from flashsmith.problem.cost import forward_cost
from flashsmith.report.contenders import (
    COLOURS,
    Against,
    against_peers,
    best_of_ours,
    colour_of,
    is_comparison,
    problem_text,
    product_tflops,
    rates_on_grid,
    regime_of,
    runs_of,
)
from flashsmith.report.figure import Figure
from flashsmith.report.winners import TUNED, Winner, winners_on_grid

_LABEL = 34  # letters of a step below a bar


def peers_over_length(
    records: Sequence[Record], tuned: Sequence[Winner], d_head: int, causal: bool
) -> Figure | None:
    """TFLOP/s of every contender over the sequence length, at one width and mask."""
    best = rates_on_grid(records, d_head, causal)
    alone = winners_on_grid(tuned, d_head, causal)
    names = sorted({name for name, _ in best}, key=lambda name: (name != OURS, name))
    lengths = sorted({length for _, length in best} | set(alone))
    if len(names) + bool(alone) < 2 or len(lengths) < 2:
        return None
    figure = Figure()
    for name in names:
        points = [best[name, length] for length in lengths if (name, length) in best]
        figure.add(
            "scatter",
            x=[r.what["q_len"] for r in points],
            y=[round(r.result["tflops"], 1) for r in points],
            name=name,
            mode="lines+markers",
            line={"color": colour_of(name), "width": 3 if name == OURS else 2},
            text=[str(r.what.get("config") or r.what["name"]) for r in points],
            hovertemplate="%{text}<br>%{x}: %{y} TFLOP/s<extra></extra>",
        )
    if alone:
        found = [alone[length] for length in sorted(alone)]
        figure.add(
            "scatter",
            x=[w.problem.q_len for w in found],
            y=[round(w.tflops, 1) for w in found],
            name=TUNED,
            mode="lines+markers",
            line={"color": COLOURS[4], "dash": "dot"},
            text=[w.config for w in found],
            hovertemplate="%{text}<br>%{x}: %{y} TFLOP/s<extra></extra>",
        )
    ticks = [str(length) for length in lengths]
    figure.axis("x", title="sequence length", type="log", tickvals=lengths, ticktext=ticks)
    figure.axis("y", title="TFLOP/s", rangemode="tozero")
    return figure.titled(f"d_head {d_head}, {'causal' if causal else 'full'} mask")


def speedups(records: Sequence[Record], regime: str) -> Figure | None:
    """How many times as fast as each peer we are, shape by shape, with the spread of the rounds."""
    found = [a for a in against_peers(records) if a.regime == regime]
    if not found:
        return None
    figure = Figure()
    for peer in sorted({a.peer for a in found}):
        mine = sorted((a for a in found if a.peer == peer), key=_by_shape)
        figure.add(
            "bar",
            x=_shape_ticks(mine),
            y=[round(a.ratio, 3) for a in mine],
            error_y=_spread([(a.ratio, a.p20, a.p80) for a in mine]),
            name=f"over {peer}",
            text=[str(a.ours.what.get("config") or a.ours.what["name"]) for a in mine],
            textposition="none",
            hovertemplate="%{x}: %{y} times as fast<br>%{text}<extra></extra>",
            marker={"color": colour_of(peer)},
        )
    figure.level(1)
    figure.axis("y", title="times as fast, median of rounds")
    figure.axis("x")
    return figure.titled(f"Against what one would use instead ({regime})", height=480, wide=True)


def _by_shape(a: Against) -> tuple[object, ...]:
    p = a.problem
    return p.d_head, p.causal, p.q_len, p.k_len, p.batch, p.heads


def _shape_ticks(found: Sequence[Against]) -> list[list[str]]:
    """Two rows below the axis: width and mask, and the length."""
    problems = [a.problem for a in found]
    groups = [f"d {p.d_head} {'causal' if p.causal else 'full'}" for p in problems]
    lengths = [
        f"{p.q_len}" + (f" ({p.heads}/{p.kv_heads})" if p.heads != p.kv_heads else "")
        for p in problems
    ]
    return [groups, lengths]


def _spread(values: Sequence[tuple[float, float | None, float | None]]) -> dict[str, Any]:
    """Error bars from the 20 % to the 80 % point; Any: plotly's JSON."""
    return {
        "type": "data",
        "symmetric": False,
        "array": [round(p80 - y, 4) if p80 is not None else 0 for y, _, p80 in values],
        "arrayminus": [round(y - p20, 4) if p20 is not None else 0 for y, p20, _ in values],
        "thickness": 1.2,
        "width": 3,
        "color": "#888888",
    }


def roofline(records: Sequence[Record], tuned: Sequence[Winner], device: str) -> Figure | None:
    """Our points under the data-sheet roof and under the matrix product measured beside them."""
    runs = runs_of([r for r in records if is_comparison(r) and regime_of(r) == "burst"])
    best = [r for r in map(best_of_ours, runs) if r is not None]
    series = {
        "beside peers": [(r.problem, float(r.result["tflops"])) for r in best],
        "winners of the tuner": [(w.problem, w.tflops) for w in tuned],
    }
    gpu = find_gpu(device)
    if gpu is None or not any(series.values()):
        return None
    figure = Figure()
    x = [2.0**n for n in range(5, 15)]
    roof = [min(gpu.tflops, gpu.bandwidth_gb_s * i / 1e3) for i in x]
    grey = {"color": "#888888"}
    figure.add("scatter", x=x, y=roof, mode="lines", name=f"{gpu.name} data sheet", line=grey)
    product = product_tflops(records)
    if product is not None:
        figure.add(
            "scatter",
            x=[x[0], x[-1]],
            y=[round(product, 1)] * 2,
            mode="lines",
            name="matrix product, measured",
            line={"dash": "dash", "color": COLOURS[1]},
        )
    for number, (name, points) in enumerate(series.items()):
        if points:
            figure.add(
                "scatter",
                x=[round(forward_cost(problem).flop_per_byte, 1) for problem, _ in points],
                y=[round(rate, 1) for _, rate in points],
                mode="markers",
                name=name,
                marker={"color": COLOURS[2 * number], "size": 9, "opacity": 0.8},
                text=[problem_text(problem) for problem, _ in points],
                hovertemplate="%{text}<br>%{y} TFLOP/s at %{x} FLOP/byte<extra></extra>",
            )
    rates = [50, 100, 200, 400, 800, 1600]
    steps = [2**n for n in range(5, 15, 2)]
    figure.axis("x", title="FLOP a byte that must move", type="log", **_ticks(steps))
    figure.axis("y", title="TFLOP/s", type="log", **_ticks(rates))
    return figure.titled("Roofline")


def _ticks(values: Sequence[int]) -> dict[str, Any]:  # Any: plotly's JSON
    return {"tickvals": list(values), "ticktext": [f"{value:,}" for value in values]}


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
        error_y=_spread(slow_fast),
        mode="markers",
        marker={"size": 1, "color": "#888888"},
        hoverinfo="skip",
        showlegend=False,
    )
    figure.axis("x", tickangle=-35)
    figure.axis("y", title="TFLOP/s", rangemode="tozero")
    where = f"{problem_text(steps[0].problem)}, {regime_of(steps[0])}"
    return figure.titled(f"What each optimisation brings ({where})", height=520, wide=True)


def _rates_between(record: Record, rate: float) -> tuple[float | None, float | None]:
    """The rates at the slow and the fast end of the rounds."""
    r = record.result
    if "p20_us" not in r or "p80_us" not in r:
        return None, None
    return rate * r["median_us"] / r["p80_us"], rate * r["median_us"] / r["p20_us"]


def _short(text: str) -> str:
    words = text.replace(": True", "").replace(": False", " off")
    return words if len(words) <= _LABEL else f"{words[: _LABEL - 1]}…"


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
            error_y=_spread(ratios),
            name=f"{knob} = {value}",
            mode="lines+markers",
            line={"color": COLOURS[number % len(COLOURS)]},
        )
    lengths = sorted({length for points in lines.values() for length in points})
    figure.axis("x", title="sequence length", type="log", **_ticks(lengths))
    figure.axis("y", title="times as fast as the start")
    return figure.titled(f"What {knob} brings")
