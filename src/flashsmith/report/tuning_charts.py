"""Charts of a tuning run: each returns None where measurements have nothing to say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flashsmith.config.parse import looks_like_config
from flashsmith.problem.attention_problem import AttentionProblem
from flashsmith.report.contenders import COLOURS, problem_of, problem_text
from flashsmith.report.figure import Figure
from flashsmith.report.sources import ReportData
from flashsmith.tuner.measurement import Measurement
from flashsmith.tuner.outcome import Timed, Verified, reason_of
from flashsmith.tuner.predict import quality

Places = Mapping[tuple[str, AttentionProblem], int]  # 1 for what is predicted fastest
_LEAST = 3  # configurations of a problem, below which an order says nothing


def landscape(measurements: Sequence[Measurement]) -> Figure | None:
    """Every timed configuration, fastest first, relative to the best of its problem."""
    timed = [m for m in measurements if isinstance(m.outcome, Timed)]
    if not timed:
        return None
    figure = Figure()
    for number, problem in enumerate(dict.fromkeys(m.key.problem for m in timed)):
        of_problem = latest([m for m in timed if m.key.problem == problem])
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
    title = "Landscape: every configuration that was timed"
    return figure.titled(title, wide=True, filtered=True)


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
    for m in latest([m for m in measurements if isinstance(m.outcome, Timed | Verified)]):
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
    for m in latest(measurements):
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


def times_of(data: ReportData) -> dict[tuple[str, AttentionProblem], float]:
    """The time of every configuration on every problem: the tuner's, else a record's."""
    times = {
        (str(r.what["name"]), problem_of(r)): float(r.result["median_us"])
        for r in data.records
        if looks_like_config(str(r.what["name"])) and not r.result.get("void")
    }
    timed = [m for m in latest(data.measurements) if isinstance(m.outcome, Timed)]
    return times | {(m.key.config, m.key.problem): _us(m) for m in timed}


def predicted(times: Mapping[tuple[str, AttentionProblem], float], places: Places) -> Figure | None:
    """The predicted place of every configuration against its measured time, with the regret."""
    figure = Figure()
    regrets = []
    groups: dict[AttentionProblem, list[tuple[int, float, str]]] = {}
    for (config, problem), us in times.items():
        if (config, problem) in places:
            groups.setdefault(problem, []).append((places[config, problem], us, config))
    for number, (problem, found) in enumerate(groups.items()):
        if len(found) < _LEAST:
            continue
        known = sorted(found)
        best = min(us for _, us, _ in known)
        good = quality([float(place) for place, _, _ in known], [us for _, us, _ in known])
        regrets.append(good.top_5_regret)
        figure.add(
            "scatter",
            x=list(range(1, len(known) + 1)),
            y=[round(us / best, 4) for _, us, _ in known],
            mode="markers",
            name=f"{problem_text(problem)}: {good.top_5_regret:.1%}, "
            f"rank correlation {good.rank_correlation:.2f}",
            marker={"color": COLOURS[number % len(COLOURS)], "size": 8},
            text=[config for _, _, config in known],
            hovertemplate="%{text}<br>predicted %{x}., %{y} of the best<extra></extra>",
        )
    if not regrets:
        return None
    figure.level(1)
    figure.axis("x", title="predicted place")
    figure.axis("y", title="measured time over the best")
    title = f"Predicted against measured: the best of the first 5 is {max(regrets):.1%} off at most"
    return figure.titled(title, height=480 + 12 * len(regrets), wide=True, filtered=True)


def _with_facts(measurements: Sequence[Measurement]) -> list[Measurement]:
    return [m for m in latest(measurements) if "registers" in m.environment]


def latest(measurements: Sequence[Measurement]) -> list[Measurement]:
    """The last measurement of each configuration on each problem: finals come after screening."""
    return list({(m.key.config, m.key.problem): m for m in measurements}.values())


def _us(measurement: Measurement) -> float:
    assert isinstance(measurement.outcome, Timed)
    return measurement.outcome.median_us


def _kib(value: object) -> float:
    return round(float(str(value)) / 1024, 1)
