"""How `flashsmith tune` speaks: a table, what was chosen, a page of charts, and files to ship."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from flashsmith.base.errors import Unsupported
from flashsmith.cli.output import Row, note
from flashsmith.cli.table import MOST_ROWS
from flashsmith.kernels import KernelConfig
from flashsmith.kernels.varying import changed
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.cost import cost_of
from flashsmith.problem.text import problem_text
from flashsmith.tuner.run.candidates import artefact_facts
from flashsmith.tuner.run.counting import Places
from flashsmith.tuner.run.ranking import LAST, Result, bits_of
from flashsmith.tuner.run.target import Target
from flashsmith.tuner.run.tune import Tuned
from flashsmith.tuner.store import exchange
from flashsmith.tuner.store.database import ResultStore
from flashsmith.tuner.store.outcome import Timed, Verified, reason_of

FIRST = 3  # of a problem that the last lines name
UNRACED = " (its last race was void or failed: chosen by the times of the step before)"


def rows_of(found: Tuned) -> list[Row]:
    """A row a candidate: as ranked by times, or, where nothing is timed, as predicted."""
    rows: list[Row] = []
    target, places = found.target, found.places
    for group in found.results.values():
        if target.can_time:
            rows += [_row(result, target) for result in group]
            continue
        rows += [
            {"predicted_place": _place(result, places), **_row(result, target)}
            for result in _in_order(group, places)
        ]
    return rows


def _place(result: Result, places: Places) -> int | None:
    return places.get((result.candidate.config, result.candidate.problem))


def _in_order(group: Sequence[Result], places: Places) -> list[Result]:
    """In predicted order, those without a place last; as ranked where nothing was predicted."""
    return sorted(group, key=lambda result: _place(result, places) or len(group) + 1)


def title_of(found: Tuned) -> str:
    """What the table is."""
    target = found.target
    if target.can_time:
        return f"measured on {target.gpu}"
    order = "in predicted order, nothing timed" if found.places else "nothing timed"
    return f"verified for {target.arch} in {target.gpu}; {order}"


def say_end(found: Tuned, path: Path, began: float, page: str = "") -> None:
    """What was done, the first of each problem, the line that does it again, and the files."""
    everything = [result for group in found.results.values() for result in group]
    sound = sum(isinstance(r.measurement.outcome, Timed | Verified) for r in everything)
    note(
        f"{len(everything)} candidates, {sound} right; {found.measured} of them new, the rest "
        f"known from before; {time.time() - began:.0f} s."
    )
    if found.unreached:
        note(
            f"{found.unreached} were not reached within the budget; run the same command to go on."
        )
    named = FIRST if len(found.results) <= FIRST else 1
    for number, (problem, group) in enumerate(found.results.items()):
        if number == MOST_ROWS:
            rest = len(found.results) - number
            note(f"{rest} more problems: flashsmith results list --store {path} --all")
            break
        for line in _first_of(problem, group, found.places, named):
            note(line)
    note(f"Again: flashsmith {shlex.join(sys.argv[1:])}")
    note(f"Kept in {path}{f'; {page}' if page else ''}.")


def _first_of(
    problem: AttentionProblem, group: Sequence[Result], places: Places, most: int
) -> list[str]:
    """The first of a problem: by their times, or as predicted where there are none."""
    timed = [r for r in group if isinstance(r.measurement.outcome, Timed) and not r.passed_over]
    if not timed and not places:
        return []
    timed.sort(key=lambda result: not result.is_winner)  # who passed the gate, then by time
    first = (timed or _in_order(group, places))[:most]
    lines = [f"{problem_text(problem)}{'' if timed else ', as predicted, not timed'}:"]
    for number, result in enumerate(first, start=1):
        name = _name_beside(result.candidate.config, first[0].candidate.config)
        how = f"{_time_text(result, first[0])}{name}"
        is_unraced = result.is_winner and result.measurement.key.protocol != LAST
        lines.append(f"  {number}. {how}{UNRACED if is_unraced else ''}")
    return lines


def _name_beside(config: KernelConfig, first: KernelConfig) -> str:
    """The short form of the first; of the others what they change in it, where that is less."""
    whole = config.short_form()
    change = f"the first with {changed(first, config)}"
    is_less = config != first and type(config) is type(first) and len(change) < len(whole)
    return change if is_less else whole


def _time_text(result: Result, first: Result) -> str:
    """The time of the first, and of the others how much longer they take."""
    mine, best = result.measurement.outcome, first.measurement.outcome
    if not (isinstance(mine, Timed) and isinstance(best, Timed)):
        return ""
    if result is first:
        return f"{mine.median_us:.1f} µs  "
    return f"{mine.median_us / best.median_us - 1:+.1%}  "


def write_charts(tuned: Tuned, path: Path) -> str:
    """Writes the page of charts, where the library for it is installed; says what it wrote."""
    from flashsmith.report.page import write_page
    from flashsmith.report.sources import ReportData

    found = tuple(result.measurement for group in tuned.results.values() for result in group)
    named = {(config.short_form(), p): place for (config, p), place in tuned.places.items()}
    again = f"flashsmith {shlex.join(sys.argv[1:])}"
    try:
        data = ReportData((), found, "this run", named, unreached=tuned.unreached)
        write_page(data, path, reproduce=again)
    except Unsupported as error:
        note(str(error))
        return ""
    return f"open {path}"


def write_table(store: ResultStore, gpu: str, table: Path | None, bundle: Path | None) -> None:
    """Writes the choosable measurements of a GPU, and the kernels that they choose."""
    found = exchange.choosable_table(store.all(), gpu)
    if table is not None:
        note(f"{exchange.write_lines(found, table)} choosable measurements written to {table}.")
    if bundle is not None:
        from flashsmith.tuner.choose.shipped_kernels import write_kernels_of

        note(f"{write_kernels_of(found, bundle)} kernels written to {bundle}.")


def _row(result: Result, target: Target) -> dict[str, object]:
    outcome, candidate = result.measurement.outcome, result.candidate
    facts = artefact_facts(candidate)
    row: dict[str, object] = {
        "config": candidate.config.short_form(),
        "problem": problem_text(candidate.problem),
        "outcome": type(outcome).__name__,
    }
    if target.can_time:
        median_us = outcome.median_us if isinstance(outcome, Timed) else None
        cost = cost_of(candidate.problem)
        row["winner"] = result.is_winner
        row["median_us"] = round(median_us, 2) if median_us else None
        row["tflops"] = round(cost.tflops(median_us / 1e6), 1) if median_us else None
        row["protocol"] = result.measurement.key.protocol
    row |= {name: facts.get(name) for name in ("registers", "spill_bytes", "blocks_per_sm")}
    row["bits"] = bits_of(result.measurement)[:8]
    row["same_as"] = candidate.same_as.short_form() if candidate.same_as else None
    row["note"] = result.passed_over or reason_of(outcome)
    return row
