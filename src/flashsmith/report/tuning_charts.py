"""Charts of a tuning run: each returns None where measurements have nothing to say."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from flashsmith.kernels.parse import looks_like_config
from flashsmith.problem.attention import AttentionProblem
from flashsmith.report.contenders import COLOURS, problem_text
from flashsmith.report.figure import Figure, hover
from flashsmith.report.sources import ReportData
from flashsmith.tuner.run.counting import Place
from flashsmith.tuner.run.predict import Quality, quality
from flashsmith.tuner.store.measurement import Measurement
from flashsmith.tuner.store.outcome import Timed

Places = Mapping[tuple[str, AttentionProblem], int]  # 1 for what is predicted fastest
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
            (place, us / ranked[0][0], hover(config, problem_text(problem)))
            for place, (us, config) in enumerate(ranked, start=1)
        ]
    if max(map(len, problems.values()), default=0) < _LEAST:
        return None
    figure = Figure()
    for number, group in enumerate(sorted(groups)):
        _add_points(figure, number, group_text(group), groups[group])
    figure.axis("x", title="place on its problem, 1 the fastest")
    figure.axis("y", title="time, over that of the fastest")
    title = f"How far configurations lie apart, on {_count(len(problems))}"
    reads = "A point is a configuration on a problem; colours are widths and masks."
    return figure.titled(title, reads, height=440, wide=True, filtered=True)


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
        hovertemplate="%{text}<br>place %{x}, %{y} of the fastest<extra></extra>",
    )


def group_text(group: Group) -> str:
    """What a colour stands for, in a legend."""
    return f"d {group[0]}, {'causal' if group[1] else 'full'}"


def _count(problems: int) -> str:
    return f"{problems} problems" if problems != 1 else "1 problem"


def occupancy(measurements: Sequence[Measurement]) -> Figure | None:
    """Registers and shared memory of every kernel, coloured by the blocks that an SM then holds."""
    known = with_facts(measurements)
    points = {(m.environment["registers"], m.environment.get("smem_bytes")) for m in known}
    if len(points) < _LEAST:
        return None
    figure = Figure()
    blocks = sorted({str(m.environment.get("blocks_per_sm")) for m in known})
    for number, count in enumerate(blocks):
        group = [m for m in known if str(m.environment.get("blocks_per_sm")) == count]
        figure.add(
            "scatter",
            x=[m.environment["registers"] for m in group],
            y=[_kib(m.environment.get("smem_bytes") or 0) for m in group],
            mode="markers",
            name=f"{count} block{'' if count == '1' else 's'} per SM",
            marker={"color": COLOURS[number % len(COLOURS)], "size": 10, "opacity": 0.7},
            text=[hover(m.key.config, _limit_text(m)) for m in group],
            hovertemplate="%{text}<br>%{x} registers, %{y} KiB<extra></extra>",
        )
    figure.axis("x", title="registers per thread")
    figure.axis("y", title="shared memory per block, KiB", rangemode="tozero")
    reads = "A point is a kernel; hover says what runs out first. More blocks on an SM hide waits."
    return figure.titled("What bounds the blocks of an SM", reads, wide=True, filtered=True)


def _limit_text(m: Measurement) -> str:
    limit = m.environment.get("limit")
    return f"bound by {limit}" if limit else ""


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
            (rank, us / best, hover(config, problem_text(problem)))
            for rank, (_, us, config) in enumerate(found, start=1)
        )
    if not groups:
        return None
    figure = Figure()
    for number, group in enumerate(sorted(groups)):
        regret = max(good.top_5_regret for good in qualities[group])
        _add_points(figure, number, f"{group_text(group)}: regret {regret:.1%}", groups[group])
    everything = [good for found in qualities.values() for good in found]
    regret = max(good.top_5_regret for good in everything)
    rank = sum(good.rank_correlation for good in everything) / len(everything)
    figure.level(1)
    figure.axis("x", title="predicted place, 1 the fastest")
    figure.axis("y", title="measured time, over that of the fastest")
    title = f"The predicted order against times: regret {regret:.1%} at most"
    reads = (
        f"Regret: how much slower the best of the five that are predicted fastest is than the best "
        f"of all. A good prediction rises from left to right; its rank correlation with the times "
        f"is {rank:.2f} in the mean over {_count(len(everything))}."
    )
    return figure.titled(title, reads, height=440, wide=True, filtered=True)


def predicted_cycles(measurements: Sequence[Measurement], places: Places) -> Figure | None:
    """Every configuration that was counted, by what limits it; None where there were times."""
    if any(isinstance(m.outcome, Timed) for m in measurements):
        return None
    verified = {(m.key.config, m.key.problem) for m in measurements}
    limits: dict[str, list[tuple[int, float, str]]] = {}
    for (config, problem), place in sorted(places.items(), key=lambda item: int(item[1])):
        if isinstance(place, Place) and math.isfinite(place.cycles_over_first):
            how = "verified" if (config, problem) in verified else "not reached"
            text = hover(config, f"{problem_text(problem)}, {how}")
            point = (int(place), place.cycles_over_first, text)
            limits.setdefault(place.limit, []).append(point)
    if sum(map(len, limits.values())) < _LEAST:
        return None
    figure = Figure()
    for number, limit in enumerate(sorted(limits)):
        _add_points(figure, number, f"limited by {limit}", limits[limit])
    figure.axis("x", title="predicted place, 1 the fastest")
    figure.axis("y", title="predicted cycles, over those of the first")
    title = "How far configurations lie apart, as predicted; nothing was timed"
    reads = (
        "A point is a configuration whose events were counted in the emulator; colours are what "
        "takes most of its cycles. Only the order of predictions means something."
    )
    return figure.titled(title, reads, height=440, wide=True, filtered=True)


def with_facts(measurements: Sequence[Measurement]) -> list[Measurement]:
    """One measurement of every configuration whose kernel's resources are known."""
    known = [m for m in measurements if m.environment.get("registers") is not None]
    return list({m.key.config: m for m in known}.values())


def latest(measurements: Sequence[Measurement]) -> list[Measurement]:
    """The last measurement of each configuration on each problem: finals come after screening."""
    return list({(m.key.config, m.key.problem): m for m in measurements}.values())


def _us(measurement: Measurement) -> float:
    assert isinstance(measurement.outcome, Timed)
    return measurement.outcome.median_us


def _kib(value: object) -> float:
    return round(float(str(value)) / 1024, 1)
