"""Charts of a tuning run: each returns None where measurements have nothing to say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from flashsmith.kernels.parse import looks_like_config
from flashsmith.problem.attention import AttentionProblem
from flashsmith.report.contenders import COLOURS, problem_text
from flashsmith.report.figure import Figure
from flashsmith.report.sources import ReportData
from flashsmith.tuner.run.predict import Quality, quality
from flashsmith.tuner.store.measurement import Measurement
from flashsmith.tuner.store.outcome import Timed, Verified, reason_of

Places = Mapping[tuple[str, AttentionProblem], int]  # 1 for what is predicted fastest
_ABREAST = 8  # bars with their names in half of the page's width
_LEAST = 3  # configurations of a problem, below which an order says nothing


Group = tuple[int, bool]  # d_head, causal: what a colour stands for


def landscape(measurements: Sequence[Measurement]) -> Figure | None:
    """Every timed configuration, fastest first, relative to the best of its problem."""
    groups: dict[Group, list[tuple[int, float, str]]] = {}
    problems: dict[AttentionProblem, list[tuple[float, str]]] = {}
    for m in latest(measurements):
        if isinstance(m.outcome, Timed):
            problems.setdefault(m.key.problem, []).append((_us(m), m.key.config))
    for problem, times in problems.items():
        ranked = sorted(times)
        points = groups.setdefault((problem.d_head, problem.causal), [])
        points += [
            (place, us / ranked[0][0], f"{config}<br>{problem_text(problem)}")
            for place, (us, config) in enumerate(ranked, start=1)
        ]
    if not groups:
        return None
    figure = Figure()
    for number, group in enumerate(sorted(groups)):
        _add_points(figure, number, _group_text(group), groups[group])
    figure.axis("x", title="place on its problem")
    figure.axis("y", title="time over the best")
    title = f"Landscape: every configuration that was timed ({len(problems)} problems)"
    reads = "A point is a configuration on a problem, 1 the fastest there. The filter narrows it."
    return figure.titled(title, reads, height=480, wide=True, filtered=True)


def _add_points(
    figure: Figure, number: int, name: str, points: Sequence[tuple[int, float, str]]
) -> None:
    figure.add(
        "scatter",
        x=[x for x, _, _ in points],
        y=[round(y, 4) for _, y, _ in points],
        mode="markers",
        name=name,
        marker={"color": COLOURS[number % len(COLOURS)], "size": 8, "opacity": 0.7},
        text=[text for _, _, text in points],
        hovertemplate="%{text}<br>place %{x}, %{y} of the best<extra></extra>",
    )


def _group_text(group: Group) -> str:
    return f"d {group[0]}, {'causal' if group[1] else 'full'}"


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
            name=f"{blocks} block{'s' if blocks != 1 else ''} an SM",
            marker={"color": COLOURS[number % len(COLOURS)]},
            hovertemplate="%{x}<br>%{y} registers<extra></extra>",
        )
    figure.axis("x", title="configuration (hover shows it)", showticklabels=False)
    figure.axis("y", title="registers a thread")
    reads = "A bar is a kernel. More blocks on an SM hide more waiting."
    return figure.titled("Registers and occupancy, from the compiler", reads)


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
    return figure.titled("What bounds occupancy", "The resource that runs out first.")


def spills(measurements: Sequence[Measurement]) -> Figure | None:
    """Bytes that did not fit the registers, from none upwards."""
    known = _with_facts(measurements)
    if not known:
        return None
    counts = Counter(int(str(m.environment.get("spill_bytes", 0))) for m in known)
    amounts = sorted(counts)
    labels = ["none" if not amount else f"{amount} bytes" for amount in amounts]
    figure = Figure()
    figure.add("bar", x=labels, y=[counts[n] for n in amounts], marker={"color": COLOURS[4]})
    figure.axis("y", title="kernels")
    reads = "What the compiler writes to memory for want of registers, a thread of a kernel."
    return figure.titled("Register spills", reads)


def numeric_classes(measurements: Sequence[Measurement]) -> Figure | None:
    """How many configurations share the bits of their output."""
    members: dict[tuple[Group, str], set[str]] = {}
    for m in latest([m for m in measurements if isinstance(m.outcome, Timed | Verified)]):
        assert isinstance(m.outcome, Timed | Verified)
        group = (m.key.problem.d_head, m.key.problem.causal)
        members.setdefault((group, m.outcome.fingerprint), set()).add(m.key.config)
    if not members:
        return None
    found = sorted(members.items(), key=lambda item: (item[0][0], -len(item[1]), item[0][1]))
    figure = Figure()
    figure.add(
        "bar",
        x=[[_group_text(group) for (group, _), _ in found], [bits[:6] for (_, bits), _ in found]],
        y=[len(configs) for _, configs in found],
        text=["<br>".join(sorted(configs)[:6]) for _, configs in found],
        textposition="none",
        hovertemplate="%{x}: %{y} configurations<br>%{text}<extra></extra>",
        marker={"color": COLOURS[3]},
    )
    figure.axis("x", title="bits of the output on fixed inputs, for each width and mask")
    figure.axis("y", title="configurations")
    reads = "Configurations of one bar give the same bits: tuning among them changes none."
    return figure.titled("Numeric classes", reads, wide=len(found) > _ABREAST)


def outcomes(measurements: Sequence[Measurement]) -> Figure | None:
    """How the candidates ended; words say it where all ended alike and well."""
    counts = Counter(type(m.outcome).__name__ for m in latest(measurements))
    if set(counts) in (set(), {Timed.__name__}, {Verified.__name__}):
        return None
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
    return figure.titled("How the candidates ended", "Hover shows a reason.")


def times_of(data: ReportData) -> dict[tuple[str, AttentionProblem], float]:
    """The time of every configuration on every problem: the tuner's, else a record's."""
    times = {
        (str(r.what["name"]), r.problem): float(r.result["median_us"])
        for r in data.records
        if looks_like_config(str(r.what["name"])) and not r.result.get("void")
    }
    timed = [m for m in latest(data.measurements) if isinstance(m.outcome, Timed)]
    return times | {(m.key.config, m.key.problem): _us(m) for m in timed}


def ranked_problems(
    times: Mapping[tuple[str, AttentionProblem], float], places: Places
) -> dict[AttentionProblem, list[tuple[int, float, str]]]:
    """Predicted place, time and configuration, in predicted order, of problems that have enough."""
    problems: dict[AttentionProblem, list[tuple[int, float, str]]] = {}
    for (config, problem), us in times.items():
        if (config, problem) in places:
            problems.setdefault(problem, []).append((places[config, problem], us, config))
    return {problem: sorted(found) for problem, found in problems.items() if len(found) >= _LEAST}


def predicted(times: Mapping[tuple[str, AttentionProblem], float], places: Places) -> Figure | None:
    """The predicted place of every configuration against its measured time, with the regret."""
    groups: dict[Group, list[tuple[int, float, str]]] = {}
    qualities: dict[Group, list[Quality]] = {}
    for problem, found in ranked_problems(times, places).items():
        group = (problem.d_head, problem.causal)
        best = min(us for _, us, _ in found)
        guesses, truths = [float(place) for place, _, _ in found], [us for _, us, _ in found]
        qualities.setdefault(group, []).append(quality(guesses, truths))
        groups.setdefault(group, []).extend(
            (rank, us / best, f"{config}<br>{problem_text(problem)}")
            for rank, (_, us, config) in enumerate(found, start=1)
        )
    if not groups:
        return None
    figure = Figure()
    for number, group in enumerate(sorted(groups)):
        regret = max(good.top_5_regret for good in qualities[group])
        name = f"{_group_text(group)}: regret {regret:.1%}"
        _add_points(figure, number, name, groups[group])
    everything = [good for found in qualities.values() for good in found]
    regret = max(good.top_5_regret for good in everything)
    rank = sum(good.rank_correlation for good in everything) / len(everything)
    figure.level(1)
    figure.axis("x", title="predicted place")
    figure.axis("y", title="measured time over the best")
    title = (
        f"Predicted against measured: the best of the first 5 is {regret:.1%} off at most, mean "
        f"rank correlation {rank:.2f} ({len(everything)} problems)"
    )
    reads = "A good prediction rises from left to right; a short run measures its first places."
    return figure.titled(title, reads, height=480, wide=True, filtered=True)


def _with_facts(measurements: Sequence[Measurement]) -> list[Measurement]:
    """One measurement of every configuration whose kernel's resources are known."""
    known = [m for m in measurements if "registers" in m.environment]
    return list({m.key.config: m for m in known}.values())


def latest(measurements: Sequence[Measurement]) -> list[Measurement]:
    """The last measurement of each configuration on each problem: finals come after screening."""
    return list({(m.key.config, m.key.problem): m for m in measurements}.values())


def _us(measurement: Measurement) -> float:
    assert isinstance(measurement.outcome, Timed)
    return measurement.outcome.median_us


def _kib(value: object) -> float:
    return round(float(str(value)) / 1024, 1)
