"""Charts of timing records: each returns None where records have nothing to say."""

from __future__ import annotations

from collections.abc import Sequence

from flashsmith.arch.gpus import attainable_tflops, find_gpu
from flashsmith.bench.versus import GEMM_SIZE, OURS
from flashsmith.measure.record import Record
from flashsmith.problem.cost import cost_of
from flashsmith.report.contenders import (
    COLOURS,
    REGIMES,
    best_of_ours,
    colour_of,
    config_text,
    family_of,
    is_comparison,
    leading_family,
    problem_text,
    product_tflops,
    rates_on_grid,
    regime_of,
    runs_of,
    tflops_of,
)
from flashsmith.report.figure import GREY, Figure, hover, ticks
from flashsmith.report.winners import TUNED, Winner, winners_on_grid

_RATE = "speed, TFLOP/s"


def peers_over_length(
    records: Sequence[Record], tuned: Sequence[Winner], d_head: int, causal: bool
) -> Figure | None:
    """The rate of every contender over the sequence length, at one width and mask."""
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
            x=[r.problem.q_len for r in points],
            y=[round(tflops_of(r), 1) for r in points],
            name=name,
            mode="lines+markers",
            line={"color": colour_of(name), "width": 3 if name == OURS else 2},
            text=[hover(config_text(r)) for r in points],
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
            text=[hover(w.config) for w in found],
            hovertemplate="%{text}<br>%{x}: %{y} TFLOP/s<extra></extra>",
        )
    figure.axis("x", title="sequence length, tokens", type="log", **ticks(lengths))
    figure.axis("y", title=_RATE, rangemode="tozero")
    reads = "Higher is better." + (" Dotted: the tuner's winners, without peers." if alone else "")
    return figure.titled(f"d_head {d_head}, {'causal' if causal else 'full'} mask", reads)


def roofline(records: Sequence[Record], tuned: Sequence[Winner], device: str) -> Figure | None:
    """Our points under the data-sheet roof and beside the matrix product of the same rounds."""
    runs = runs_of([r for r in records if is_comparison(r) and regime_of(r) == "burst"])
    leader = leading_family(records)
    best = [r for r in map(best_of_ours, runs) if r is not None and family_of(r) in ("", leader)]
    series = {
        "flashsmith, beside peers": [(r.problem, tflops_of(r)) for r in best],
        TUNED: [(w.problem, w.tflops) for w in tuned],
    }
    gpu = find_gpu(device)
    if gpu is None or not any(series.values()):
        return None
    figure = Figure()
    # With the knee among them, both parts of the roof are straight lines.
    x = sorted([*(2.0**n for n in range(5, 15)), gpu.ridge_flop_per_byte])
    roof = [attainable_tflops(gpu, i) for i in x]
    name = f"{gpu.name}, data sheet"
    figure.add("scatter", x=x, y=roof, mode="lines", name=name, line={"color": GREY})
    product = product_tflops(records)
    if product is not None:
        figure.add(
            "scatter",
            x=[x[0], x[-1]],
            y=[round(product, 1)] * 2,
            mode="lines",
            name=f"matrix product of {GEMM_SIZE:,}³, measured",
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
                text=[hover(problem_text(problem)) for problem, _ in points],
                hovertemplate="%{text}<br>%{y} TFLOP/s at %{x} FLOP/byte<extra></extra>",
            )
    rates = [50, 100, 200, 400, 800, 1600]
    steps = [2**n for n in range(5, 15, 2)]
    figure.axis("x", title="work per byte that must move, FLOP/byte", type="log", **ticks(steps))
    figure.axis("y", title=_RATE, type="log", **ticks(rates))
    kernels = f" of {leader}" if leader else ""
    reads = (
        f"The grey line is what the GPU could do at most; a point is a shape{kernels}. "
        f"{REGIMES['burst'].capitalize()}."
    )
    return figure.titled("Roofline", reads)
