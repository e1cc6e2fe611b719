"""How `flashsmith tune` speaks: a table, what was chosen, a page of charts, and files to ship."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

from flashsmith.base.errors import Unsupported
from flashsmith.cli.output import Row, note
from flashsmith.cli.verbs.tune_steps import Found
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.cost import cost_of
from flashsmith.problem.text import problem_text
from flashsmith.tuner.run.candidates import artefact_facts
from flashsmith.tuner.run.counting import Places
from flashsmith.tuner.run.ranking import LAST, Result, bits_of
from flashsmith.tuner.run.target import Target
from flashsmith.tuner.store import exchange
from flashsmith.tuner.store.database import ResultStore
from flashsmith.tuner.store.outcome import Timed, Verified, reason_of

Results = Mapping[AttentionProblem, list[Result]]
UNRACED = " (its last race was void or failed: chosen by the times of the step before)"


def rows_of(results: Results, target: Target, places: Places) -> list[Row]:
    """A row a candidate: as ranked by times, or, where nothing is timed, as predicted."""
    rows: list[Row] = []
    for group in results.values():
        if target.can_time:
            rows += [_row(result, target) for result in group]
            continue
        placed = [(places.get((r.candidate.config, r.candidate.problem)), r) for r in group]
        placed.sort(key=lambda item: (item[0] is None, item[0] or 0))
        rows += [{"predicted_place": place, **_row(r, target)} for place, r in placed]
    return rows


def title_of(target: Target, places: Places) -> str:
    """What the table is."""
    if target.can_time:
        return f"measured on {target.gpu}"
    order = "in predicted order, nothing timed" if places else "nothing timed"
    return f"verified for {target.arch} in {target.gpu}; {order}"


def say_end(found: Found, path: Path, seconds: float) -> None:
    """What was done, what was chosen, and the line that does it again."""
    results = found.results
    everything = [result for group in results.values() for result in group]
    sound = sum(isinstance(r.measurement.outcome, Timed | Verified) for r in everything)
    note(
        f"{len(everything)} candidates, {sound} right; {found.measured} of them new, the rest "
        f"known from before; {seconds:.0f} s."
    )
    if found.unreached:
        note(f"{found.unreached} were not reached within the budget; the same line again goes on.")
    for problem, group in results.items():
        winner = next((r for r in group if r.is_winner), None)
        if winner is not None:
            how = "" if winner.measurement.key.protocol == LAST else UNRACED
            note(f"{problem_text(problem)}: {winner.candidate.config.short_form()}{how}")
    note(f"Kept in {path}. Again: flashsmith {shlex.join(sys.argv[1:])}")


def write_charts(results: Results, path: Path, places: Places) -> None:
    """Writes the page of charts, where the library for it is installed."""
    from flashsmith.report.page import write_page
    from flashsmith.report.sources import ReportData

    found = tuple(result.measurement for group in results.values() for result in group)
    named = {(config.short_form(), problem): place for (config, problem), place in places.items()}
    again = f"flashsmith {shlex.join(sys.argv[1:])}"
    try:
        charts = write_page(ReportData((), found, "this run", named), path, reproduce=again)
    except Unsupported as error:
        note(str(error))
    else:
        note(f"Open {path}: {charts} charts.")


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
