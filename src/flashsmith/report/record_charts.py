"""Charts of timing records: each returns None, or none, where records have nothing to say."""

from __future__ import annotations

from collections.abc import Sequence

from flashsmith.arch import attainable_tflops, find_gpu
from flashsmith.bench.versus import OURS
from flashsmith.measure.record import Record
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.cost import cost_of
from flashsmith.report.contenders import (
    COLOURS,
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
from flashsmith.report.figure import Figure, spread, ticks
from flashsmith.report.winners import TUNED, Winner, winners_on_grid


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
            text=[_config_text(r) for r in points],
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
    figure.axis("x", title="sequence length", type="log", **ticks(lengths))
    figure.axis("y", title="TFLOP/s", rangemode="tozero")
    reads = "Higher is better. Dotted: the tuner's winners, timed without peers." if alone else ""
    return figure.titled(f"d_head {d_head}, {'causal' if causal else 'full'} mask", reads)


def speedups(records: Sequence[Record], regime: str) -> Figure | None:
    """How many times as fast as each peer we are, shape by shape, with the spread of the rounds."""
    found = [a for a in against_peers(records) if a.regime == regime]
    if not found:
        return None
    figure = Figure()
    # Every trace has every shape: the axis takes the order of the first.
    shapes = sorted({a.problem for a in found}, key=_by_shape)
    for peer in sorted({a.peer for a in found}):
        mine = {a.problem: a for a in found if a.peer == peer}
        there = [mine.get(problem) for problem in shapes]
        figure.add(
            "bar",
            x=_shape_ticks(shapes),
            y=[round(a.ratio, 3) if a else None for a in there],
            error_y=spread([(a.ratio, a.p20, a.p80) if a else (0, None, None) for a in there]),
            name=f"over {peer}",
            text=[
                str(a.ours.what.get("config") or a.ours.what["name"]) if a else "" for a in there
            ],
            textposition="none",
            hovertemplate="%{x}: %{y} times as fast<br>%{text}<extra></extra>",
            marker={"color": colour_of(peer)},
        )
    figure.level(1)
    figure.axis("y", title="times as fast, median of rounds")
    figure.axis("x")
    reads = "Above the dashed line flashsmith is faster. Whiskers: middle three fifths of rounds."
    title = f"Against what one would use instead ({regime})"
    return figure.titled(title, reads, height=480, wide=True)


def _config_text(record: Record) -> str:
    return str(record.what.get("config") or record.what["name"])


def _by_shape(p: AttentionProblem) -> tuple[object, ...]:
    return p.d_head, p.causal, p.q_len, p.k_len, p.batch, p.heads, p.kv_heads, p


def _shape_ticks(problems: Sequence[AttentionProblem]) -> list[list[str]]:
    """Two rows below the axis: width and mask, and the length."""
    groups = [f"d {p.d_head} {'causal' if p.causal else 'full'}" for p in problems]
    lengths = [
        f"{p.q_len}" + (f" ({p.heads}/{p.kv_heads})" if p.heads != p.kv_heads else "")
        for p in problems
    ]
    return [groups, lengths]


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
    # With the knee among them, both parts of the roof are straight lines.
    x = sorted([*(2.0**n for n in range(5, 15)), gpu.ridge_flop_per_byte])
    roof = [attainable_tflops(gpu, i) for i in x]
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
                x=[round(cost_of(problem).flop_per_byte, 1) for problem, _ in points],
                y=[round(rate, 1) for _, rate in points],
                mode="markers",
                name=name,
                marker={"color": COLOURS[2 * number], "size": 9, "opacity": 0.8},
                text=[problem_text(problem) for problem, _ in points],
                hovertemplate="%{text}<br>%{y} TFLOP/s at %{x} FLOP/byte<extra></extra>",
            )
    rates = [50, 100, 200, 400, 800, 1600]
    steps = [2**n for n in range(5, 15, 2)]
    figure.axis("x", title="FLOP a byte that must move", type="log", **ticks(steps))
    figure.axis("y", title="TFLOP/s", type="log", **ticks(rates))
    reads = "Lines: what the GPU could do at most; points: attention, burst."
    return figure.titled("Roofline", reads)
