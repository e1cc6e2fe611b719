"""Tables of a tuning run: winners, the predicted order, classes of bits, spills, failures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from flashsmith.kernels.varying import spoken, varying_texts
from flashsmith.problem.attention import AttentionProblem
from flashsmith.report.contenders import config_of, problem_text
from flashsmith.report.table import Cell, Table, knob_columns, number, whole
from flashsmith.report.tuning_charts import group_text, latest, with_facts
from flashsmith.report.winners import winners
from flashsmith.tuner.run.counting import Place
from flashsmith.tuner.store.measurement import Measurement
from flashsmith.tuner.store.outcome import Timed, Verified, reason_of

Places = Mapping[tuple[str, AttentionProblem], Place]
_SHOWN = 20  # of a predicted order


def winners_table(measurements: Sequence[Measurement]) -> Table | None:
    """The winner of every problem; words say it where there is one problem only."""
    found = winners(measurements)
    if len(found) < 2:
        return None
    knobs = knob_columns([w.config for w in found], stated=("d_head",))
    rows = tuple(
        (
            whole(problem_text(w.problem)),
            number(f"{w.median_us:.1f}"),
            number(f"{w.tflops:.0f}"),
            number("" if w.ahead is None else f"{w.ahead:.1%}"),
            *map(Cell, cells),
        )
        for w, cells in zip(found, knobs.rows, strict=True)
    )
    heads = ("problem", "time, µs", "TFLOP/s", "ahead of the next", *knobs.heads)
    return Table("The fastest configuration of each problem", _all(knobs.caption), heads, rows)


def _all(caption: str) -> str:
    return f"All: {caption}." if caption else ""


def order_table(measurements: Sequence[Measurement], places: Places) -> Table | None:
    """The configurations of the first problem as predicted; None where there were times."""
    found = [
        m
        for m in latest(measurements)
        if isinstance(m.outcome, Verified) and (m.key.config, m.key.problem) in places
    ]
    if not found:
        return None
    problem = found[0].key.problem
    mine = [(places[m.key.config, problem], m) for m in found if m.key.problem == problem]
    ranked = sorted(mine, key=lambda item: (item[0], item[1].key.config))[:_SHOWN]
    knobs = knob_columns([m.key.config for _, m in ranked])
    last = max(
        (p.cycles_over_first for p, _ in ranked if not math.isnan(p.cycles_over_first)), default=1.0
    )
    rows = tuple(
        (
            number(f"{int(place)}"),
            *_predicted(place, last),
            *map(Cell, cells),
            number(str(m.environment.get("registers") or "")),
            number(str(m.environment.get("blocks_per_sm") or "")),
            Cell(_bits(m)),
        )
        for (place, m), cells in zip(ranked, knobs.rows, strict=True)
    )
    title = f"Predicted order on {problem_text(problem)}, nothing was timed"
    reads = (
        f"Cycles are those that a model predicts for the busiest SM, over those of the first; "
        f"limited by: what takes most of them. Class: configurations of one give the same bits. "
        f"{_all(knobs.caption)}"
    )
    heads = (
        *("place", "cycles, over the first", "limited by", *knobs.heads),
        *("registers per thread", "blocks per SM", "class"),
    )
    words = tuple(f"{m.key.config} {place.limit} {_bits(m)}" for place, m in ranked)
    return Table(title, reads, heads, rows, words)


def _predicted(place: Place, last: float) -> tuple[Cell, Cell]:
    """The predicted quantity with a bar, and what limits; both unknown in older records."""
    if math.isnan(place.cycles_over_first):
        return number("unknown"), Cell("unknown")
    share = 100 * place.cycles_over_first / last
    return Cell(f"{place.cycles_over_first:.3f}", "", "number", (0, share)), Cell(place.limit)


def _bits(measurement: Measurement) -> str:
    assert isinstance(measurement.outcome, Timed | Verified)
    return measurement.outcome.fingerprint[:6] or "unknown"


def classes_table(measurements: Sequence[Measurement]) -> Table | None:
    """Which configurations share the bits of their output, by width and mask, and why."""
    groups: dict[tuple[int, bool, str], dict[str, list[str]]] = {}
    for m in latest([m for m in measurements if isinstance(m.outcome, Timed | Verified)]):
        config, problem = config_of(m.key.config), m.key.problem
        family = config.NAME if config else ""
        classes = groups.setdefault((problem.d_head, problem.causal, family), {})
        if m.key.config not in classes.setdefault(_bits(m), []):
            classes[_bits(m)].append(m.key.config)
    if max(map(len, groups.values()), default=0) < 2:
        return None
    rows = tuple(
        (Cell(f"{group_text((d, causal))}, {family}"), Cell(bits), number(f"{count}"), Cell(text))
        for (d, causal, family), classes in sorted(groups.items())
        for bits, count, text in _told_apart(classes)
    )
    reads = (
        "A class is the configurations whose output has the same bits: choosing among them changes "
        "no result. Beside each stands what tells it from the others."
    )
    heads = ("width, mask, kernel", "class", "configurations", "told by")
    return Table("Classes of equal bits", reads, heads, rows)


def _told_apart(classes: Mapping[str, Sequence[str]]) -> list[tuple[str, int, str]]:
    """Name, size and what is particular of every class, the largest first.

    A knob tells classes apart that has one value in a class and another one in another.
    """
    inside = {bits: varying_texts(configs).same for bits, configs in classes.items()}
    names = dict.fromkeys(name for same in inside.values() for name in same)
    values = {name: {same[name] for same in inside.values() if name in same} for name in names}
    found = sorted(classes.items(), key=lambda item: (-len(item[1]), item[0]))
    return [
        (
            bits,
            len(configs),
            ", ".join(spoken(n, c) for n, c in inside[bits].items() if len(values[n]) > 1),
        )
        for bits, configs in found
    ]


def spills_table(measurements: Sequence[Measurement]) -> Table | None:
    """Kernels that do not fit their registers; None where every one does."""
    known = with_facts(measurements)
    spilling = [m for m in known if m.environment.get("spill_bytes")]
    if not spilling:
        return None
    spilling.sort(key=lambda m: (-int(str(m.environment["spill_bytes"])), m.key.config))
    knobs = knob_columns([m.key.config for m in spilling])
    rows = tuple(
        (*map(Cell, cells), number(f"{m.environment['spill_bytes']:,}"))
        for m, cells in zip(spilling, knobs.rows, strict=True)
    )
    reads = (
        f"Bytes that a thread stores to and loads from memory because its registers are full. The "
        f"other {len(known) - len(spilling)} kernels spill nothing. {_all(knobs.caption)}"
    )
    title = f"{len(spilling)} of {len(known)} kernels spill registers"
    return Table(title, reads, (*knobs.heads, "spilled bytes"), rows)


def failures_table(measurements: Sequence[Measurement]) -> Table | None:
    """Candidates that could not be measured, with the reason; None where there are none."""
    failed = [m for m in latest(measurements) if not isinstance(m.outcome, Timed | Verified)]
    if not failed:
        return None
    knobs = knob_columns([m.key.config for m in failed])
    rows = tuple(
        (
            Cell(type(m.outcome).__name__),
            Cell(reason_of(m.outcome)[:200]),
            Cell(problem_text(m.key.problem)),
            *map(Cell, cells),
        )
        for m, cells in zip(failed, knobs.rows, strict=True)
    )
    heads = ("ended", "reason", "problem", *knobs.heads)
    title = f"{len(failed)} candidates could not be measured"
    return Table(title, _all(knobs.caption), heads, rows)
