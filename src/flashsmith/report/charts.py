"""Charts as plotly figures: each takes records and returns None where they have nothing to say."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from flashsmith.arch import find_gpu
from flashsmith.base.dtypes import DType
from flashsmith.measure.record import Record
from flashsmith.problem.attention_problem import AttentionProblem
from flashsmith.problem.cost import forward_cost
from flashsmith.report.figure import Figure
from flashsmith.tuner.measurement import Measurement
from flashsmith.tuner.outcome import Timed, Verified, reason_of

OURS = "flashsmith"
# Distinguishable for colour-blind readers, on white and on black (Okabe and Ito).
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#999999", "#F0E442")


def problem_of(record: Record) -> AttentionProblem:
    """The problem a record is about."""
    what = record.what
    names = ("batch", "heads", "kv_heads", "q_len", "k_len", "d_head")
    return AttentionProblem(
        **{name: what[name] for name in names},
        dtype=DType[what["dtype"]],
        causal=what["causal"],
        diagonal=what.get("diagonal"),
    )


def peers_over_length(records: Sequence[Record], d_head: int, causal: bool) -> Figure | None:
    """TFLOP/s of every contender over the sequence length, at one width and mask."""
    chosen = [
        r
        for r in records
        if r.what["d_head"] == d_head
        and r.what["causal"] is causal
        and r.what["q_len"] == r.what["k_len"]
        and not r.result.get("void")
    ]
    best = _best_of_ours(chosen)
    if len({r.what["q_len"] for r in best}) < 2 or len({contender(r) for r in best}) < 2:
        return None
    figure = Figure()
    for number, name in enumerate(sorted({contender(r) for r in best}, key=_ours_first)):
        points = sorted((r for r in best if contender(r) == name), key=lambda r: r.what["q_len"])
        figure.add(
            "scatter",
            x=[r.what["q_len"] for r in points],
            y=[round(r.result["tflops"], 1) for r in points],
            name=name,
            mode="lines+markers",
            line={"color": COLOURS[number % len(COLOURS)], "width": 3 if name == OURS else 2},
            text=[r.what["name"] for r in points],
            hovertemplate="%{text}<br>%{x}: %{y} TFLOP/s<extra></extra>",
        )
    mask = "causal" if causal else "full"
    ticks = _lengths(best)
    figure.axis(
        "x", title="sequence length", type="log", tickvals=ticks, ticktext=[str(t) for t in ticks]
    )
    figure.axis("y", title="TFLOP/s", rangemode="tozero")
    return figure.titled(f"d_head {d_head}, {mask} mask")


def speedups(records: Sequence[Record]) -> Figure | None:
    """How many times as fast as each peer we are, shape by shape, with the spread of the rounds."""
    groups = fastest_by_shape([r for r in records if not r.result.get("void")])
    peers = sorted({name for group in groups.values() for name in group if name != OURS})
    figure = Figure()
    for number, peer in enumerate(peers):
        shapes = [s for s, group in groups.items() if OURS in group and peer in group]
        ratios = [
            groups[s][peer].result["median_us"] / groups[s][OURS].result["median_us"]
            for s in shapes
        ]
        if shapes:
            figure.add(
                "bar",
                x=shapes,
                y=[round(ratio, 3) for ratio in ratios],
                name=f"over {peer}",
                marker={"color": COLOURS[(number + 1) % len(COLOURS)]},
            )
    if not figure.data:
        return None
    figure.level(1)
    figure.axis("y", title="times as fast")
    figure.axis("x", tickangle=-45)
    return figure.titled("Against what one would use instead", height=520)


def roofline(records: Sequence[Record]) -> Figure | None:
    """Our points under the data-sheet roof and under the matrix product measured beside them."""
    best = [r for r in _best_of_ours(records) if contender(r) == OURS]
    gpu = find_gpu(best[0].environment["device"]) if best else None
    if gpu is None:
        return None
    figure = Figure()
    x = [2.0**n for n in range(4, 15)]
    roof = [min(gpu.tflops, gpu.bandwidth_gb_s * i / 1e3) for i in x]
    figure.add(
        "scatter",
        x=x,
        y=roof,
        mode="lines",
        name=f"{gpu.name} data sheet",
        line={"color": "#888888"},
    )
    gemm = [r.result["tflops"] for r in records if r.what["name"] == "GEMM"]
    if gemm:
        figure.add(
            "scatter",
            x=[x[0], x[-1]],
            y=[max(gemm)] * 2,
            mode="lines",
            name="matrix product, measured",
            line={"dash": "dash", "color": COLOURS[1]},
        )
    costs = [forward_cost(problem_of(r)) for r in best]
    figure.add(
        "scatter",
        x=[round(c.flop_per_byte, 1) for c in costs],
        y=[round(r.result["tflops"], 1) for r in best],
        mode="markers",
        name=OURS,
        marker={"color": COLOURS[0], "size": 9},
        text=[_shape(r) for r in best],
        hovertemplate="%{text}<br>%{y} TFLOP/s at %{x} FLOP/byte<extra></extra>",
    )
    figure.axis("x", title="FLOP a byte that must move", type="log")
    figure.axis("y", title="TFLOP/s", type="log")
    return figure.titled("Roofline")


def ladder(records: Sequence[Record]) -> Figure | None:
    """What each step of the progression brings, as a waterfall of TFLOP/s."""
    steps = [r for r in records if r.what["suite"] == "progression"]
    if len(steps) < 2:
        return None
    shape = _shape(steps[0])
    steps = [r for r in steps if _shape(r) == shape]
    rates = [r.result["tflops"] for r in steps]
    figure = Figure()
    figure.add(
        "waterfall",
        x=[f"{n + 1}" for n in range(len(steps))],
        y=[round(rates[0], 1)] + [round(b - a, 1) for a, b in pairwise(rates)],
        measure=["absolute"] + ["relative"] * (len(steps) - 1),
        text=[f"{rate:.0f}" for rate in rates],
        customdata=[r.what["name"] for r in steps],
        hovertemplate="%{customdata}<br>%{text} TFLOP/s<extra></extra>",
        increasing={"marker": {"color": COLOURS[2]}},
        decreasing={"marker": {"color": COLOURS[5]}},
        totals={"marker": {"color": COLOURS[0]}},
    )
    figure.axis("x", title="step of the ladder")
    figure.axis("y", title="TFLOP/s")
    return figure.titled(f"What each optimisation brings ({shape})")


def landscape(measurements: Sequence[Measurement]) -> Figure | None:
    """Every timed configuration, fastest first, relative to the best of its problem."""
    timed = [m for m in measurements if isinstance(m.outcome, Timed)]
    if not timed:
        return None
    figure = Figure()
    for number, problem in enumerate(dict.fromkeys(m.key.problem for m in timed)):
        of_problem = _latest([m for m in timed if m.key.problem == problem])
        times = sorted((_us(m), m.key.config) for m in of_problem)
        figure.add(
            "scatter",
            x=list(range(1, len(times) + 1)),
            y=[round(us / times[0][0], 4) for us, _ in times],
            mode="markers",
            name=problem_text(problem),
            marker={"color": COLOURS[number % len(COLOURS)], "size": 8},
            text=[config for _, config in times],
            hovertemplate="%{text}<br>%{y} of the best<extra></extra>",
        )
    figure.axis("x", title="place")
    figure.axis("y", title="time over the best")
    return figure.titled("Landscape: every configuration that was timed")


def resources(measurements: Sequence[Measurement]) -> Figure | None:
    """Registers of every kernel, coloured by how many blocks an SM then holds."""
    known = _with_facts(measurements)
    if not known:
        return None
    figure = Figure()
    for number, blocks in enumerate(
        sorted({m.environment["blocks_per_sm"] for m in known}, key=str)
    ):
        group = [m for m in known if m.environment["blocks_per_sm"] == blocks]
        figure.add(
            "bar",
            x=[m.key.config for m in group],
            y=[m.environment["registers"] for m in group],
            name=f"{blocks} blocks an SM",
            marker={"color": COLOURS[number % len(COLOURS)]},
            hovertemplate="%{x}<br>%{y} registers<extra></extra>",
        )
    figure.axis("x", title="configuration (hover shows it)", showticklabels=False)
    figure.axis("y", title="registers a thread")
    return figure.titled("Registers and occupancy, from the compiler")


def shared_memory(measurements: Sequence[Measurement]) -> Figure | None:
    """Shared memory against registers: what bounds the blocks an SM holds."""
    known = [m for m in _with_facts(measurements) if "limit" in m.environment]
    if not known:
        return None
    figure = Figure()
    for number, limit in enumerate(sorted({str(m.environment["limit"]) for m in known})):
        group = [m for m in known if m.environment["limit"] == limit]
        figure.add(
            "scatter",
            x=[m.environment["registers"] for m in group],
            y=[_kib(m.environment["smem_bytes"]) for m in group],
            mode="markers",
            name=f"bound by {limit}",
            marker={"color": COLOURS[number % len(COLOURS)], "size": 10, "opacity": 0.7},
            text=[m.key.config for m in group],
            hovertemplate="%{text}<br>%{x} registers, %{y} KiB<extra></extra>",
        )
    figure.axis("x", title="registers a thread")
    figure.axis("y", title="shared memory of a block, KiB")
    return figure.titled("What bounds occupancy")


def spills(measurements: Sequence[Measurement]) -> Figure | None:
    """Bytes that did not fit the registers, for the kernels that have any."""
    known = _with_facts(measurements)
    if not known:
        return None
    counts: dict[str, int] = {}
    for m in known:
        amount = m.environment.get("spill_bytes", 0)
        label = "no spills" if not amount else f"{amount} bytes"
        counts[label] = counts.get(label, 0) + 1
    figure = Figure()
    figure.add("bar", x=list(counts), y=list(counts.values()), marker={"color": COLOURS[4]})
    figure.axis("y", title="kernels")
    return figure.titled("Register spills")


def numeric_classes(measurements: Sequence[Measurement]) -> Figure | None:
    """How many configurations share the bits of their output."""
    members: dict[str, list[str]] = {}
    for m in _latest([m for m in measurements if isinstance(m.outcome, Timed | Verified)]):
        assert isinstance(m.outcome, Timed | Verified)
        name = f"{m.outcome.fingerprint[:8]} {'causal' if m.key.problem.causal else 'full'}"
        members.setdefault(name, []).append(m.key.config)
    if not members:
        return None
    figure = Figure()
    figure.add(
        "bar",
        x=list(members),
        y=[len(set(found)) for found in members.values()],
        text=["<br>".join(sorted(set(found))[:6]) for found in members.values()],
        textposition="none",
        hovertemplate="%{x}: %{y} configurations<br>%{text}<extra></extra>",
        marker={"color": COLOURS[3]},
    )
    figure.axis("x", title="bits of the output on fixed inputs")
    figure.axis("y", title="configurations")
    return figure.titled("Numeric classes: equal bits")


def outcomes(measurements: Sequence[Measurement]) -> Figure | None:
    """How the candidates ended."""
    if not measurements:
        return None
    counts: dict[str, int] = {}
    for m in _latest(measurements):
        kind = type(m.outcome).__name__
        counts[kind] = counts.get(kind, 0) + 1
    reasons = {type(m.outcome).__name__: reason_of(m.outcome)[:80] for m in measurements}
    figure = Figure()
    figure.add(
        "bar",
        x=list(counts),
        y=list(counts.values()),
        text=[reasons[kind] for kind in counts],
        textposition="none",
        hovertemplate="%{x}: %{y}<br>%{text}<extra></extra>",
        marker={"color": COLOURS[0]},
    )
    figure.axis("y", title="candidates")
    return figure.titled("How the candidates ended")


def problem_text(problem: AttentionProblem) -> str:
    """A problem in a legend."""
    mask = "causal" if problem.causal else "full"
    return f"{problem.q_len} x {problem.k_len}, d {problem.d_head}, {mask}"


def _with_facts(measurements: Sequence[Measurement]) -> list[Measurement]:
    return [m for m in _latest(measurements) if "registers" in m.environment]


def _latest(measurements: Sequence[Measurement]) -> list[Measurement]:
    """The last measurement of each configuration on each problem: finals come after screening."""
    return list({(m.key.config, m.key.problem): m for m in measurements}.values())


def _us(measurement: Measurement) -> float:
    assert isinstance(measurement.outcome, Timed)
    return measurement.outcome.median_us


def _kib(value: object) -> float:
    return round(float(str(value)) / 1024, 1)


def contender(record: Record) -> str:
    """Who a record is about: one of our configurations is us."""
    name = str(record.what["name"])
    return OURS if name == OURS or ("(" in name and "): " in name) else name


def fastest_by_shape(records: Sequence[Record]) -> dict[str, dict[str, Record]]:
    """The record of every contender, shape by shape."""
    groups: dict[str, dict[str, Record]] = {}
    for record in _best_of_ours(records):
        groups.setdefault(_shape(record), {})[contender(record)] = record
    return groups


def _best_of_ours(records: Sequence[Record]) -> list[Record]:
    """One record a contender and shape: of several configurations of ours the fastest."""
    best: dict[tuple[str, str], Record] = {}
    for record in records:
        if record.what["suite"] == "progression" or record.what["name"] == "GEMM":
            continue
        key = (_shape(record), contender(record))
        if key not in best or record.result["median_us"] < best[key].result["median_us"]:
            best[key] = record
    return list(best.values())


def _shape(record: Record) -> str:
    return problem_text(problem_of(record))


def _ours_first(name: str) -> tuple[bool, str]:
    return name != OURS, name


def _lengths(records: Sequence[Record]) -> list[int]:
    return sorted({2 ** round(math.log2(r.what["q_len"])) for r in records})
