"""Charts of what a profiler counted: where kernels stand between tensor cores and rate."""

from __future__ import annotations

from collections.abc import Sequence

from flashsmith.measure.record import Record
from flashsmith.report.contenders import COLOURS
from flashsmith.report.figure import Figure, hover

# What a point says of itself, as the records call it.
_SAID = (
    ("registers", "registers per thread"),
    ("l2_hit_pct", "% of L2 accesses hit"),
    ("warps_pct", "% of the warps an SM can hold"),
    ("bank_conflicts", "bank conflicts"),
)


def counters(counted: Sequence[Record]) -> list[Figure]:
    """A chart for each width and mask of which more than one kernel was profiled."""
    newest = {(r.what["name"], r.problem): r for r in counted if _can_be_drawn(r)}
    shapes = sorted({(p.d_head, p.causal) for _, p in newest})
    groups = [
        ((d, causal), [r for (_, p), r in newest.items() if (p.d_head, p.causal) == (d, causal)])
        for d, causal in shapes
    ]
    return [_chart(*shape, found) for shape, found in groups if len(found) > 1]


def _chart(d_head: int, causal: bool, found: Sequence[Record]) -> Figure:
    figure = Figure()
    for number, length in enumerate(sorted({r.problem.q_len for r in found})):
        points = [r for r in found if r.problem.q_len == length]
        figure.add(
            "scatter",
            x=[r.result["tensor_pct"] for r in points],
            y=[round(r.result["tflops"], 1) for r in points],
            name=f"length {length:,}",
            mode="markers",
            marker={"color": COLOURS[number % len(COLOURS)], "opacity": 0.8, "size": 7},
            text=[_said(r) for r in points],
            hovertemplate="%{text}<br>%{x} % of cycles, %{y} TFLOP/s<extra></extra>",
        )
    figure.axis("x", title="tensor cores busy, % of cycles", rangemode="tozero")
    figure.axis("y", title="speed under the profiler, TFLOP/s", rangemode="tozero")
    busy = [float(r.result["tensor_pct"]) for r in found]
    mask = "causal" if causal else "full"
    title = f"d_head {d_head}, {mask}: tensor cores busy {min(busy):.0f} to {max(busy):.0f} %"
    reads = "A point is a kernel, run once under Nsight Compute: it explains, it does not compare."
    return figure.titled(title, reads)


def _said(record: Record) -> str:
    known = [f"{record.result[name]:,.0f} {word}" for name, word in _SAID if name in record.result]
    return hover(str(record.what["name"]), *known)


def _can_be_drawn(record: Record) -> bool:
    return None not in (record.result.get("tensor_pct"), record.result.get("tflops"))
