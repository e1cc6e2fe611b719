"""`flashsmith verify`: each configuration of a set on the device at hand, right or wrong."""

from __future__ import annotations

import math
from typing import Annotated

import typer

from flashsmith.base.errors import ArgumentError
from flashsmith.check.survey import CASES, Checked, check_on_device, check_on_emulator
from flashsmith.check.verdict import Verdict
from flashsmith.cli import options
from flashsmith.cli.output import Row, note, show
from flashsmith.cli.progress import progress_bar
from flashsmith.runtime.devices import default_device, default_device_name

DEFAULT_KEY = "tune"  # the set without KEY and KERNELS
# `of_allowed` is error / allowed; a table shows it in their place.
COLUMNS = (
    *("config", "case", "result", "error", "allowed", "of_allowed"),
    *("seconds", "where", "reason"),
)
CasesOption = Annotated[
    str,
    typer.Option(
        "--cases", help="quick (3 per configuration), full (12), packed, bias or serving."
    ),
]
WorkersOption = Annotated[
    int | None,
    typer.Option("--workers", min=1, help="Processes at a time; without it one per core."),
]


def command(
    key: options.KeyArgument = None,
    device: options.DeviceOption = None,
    cases: CasesOption = "quick",
    workers: WorkersOption = None,
    every: options.AllOption = False,
    json: options.JsonOption = False,
    csv: options.CsvOption = False,
) -> None:
    """Check every configuration of a set; exit code 1 when one is wrong.

    Example: flashsmith verify smoke --device emulator --json
    """
    if cases not in CASES:
        raise ArgumentError(f"--cases is {cases!r}; it must be one of {', '.join(CASES)}.")
    configs = options.configs_of(key, DEFAULT_KEY)
    name = device or default_device_name()
    with progress_bar(f"verifying on {name}") as progress:
        if name == "emulator":
            checked = check_on_emulator(configs, cases, workers=workers, progress=progress)
        else:
            checked = check_on_device(
                default_device(name), configs, cases, workers=workers, progress=progress
            )
    rows = [_row(one) for one in checked]
    columns = COLUMNS if json or csv else _used(rows)
    if not (json or csv):
        rows.sort(key=lambda row: row["result"] == "right")  # what is wrong is among those shown
    show(rows, json=json, csv=csv, columns=columns, every=every, title=f"verified on {name}")
    wrong = sum(one.wrong for one in checked)
    refused = sum(bool(one.refusal) for one in checked)
    note(f"{len(checked) - wrong - refused} right, {wrong} wrong, {refused} cannot run here.")
    if wrong:
        raise typer.Exit(1)


def _row(checked: Checked) -> Row:
    verdict = checked.verdict
    if verdict is None:
        return {
            "config": checked.config.short_form(),
            "case": checked.case,
            "result": "cannot run",
            "reason": checked.refusal,
        }
    return {
        "config": checked.config.short_form(),
        "case": checked.case,
        "result": "right" if verdict.ok else "wrong",
        **error_columns(verdict),
        "seconds": round(checked.seconds, 3),
        "where": None if verdict.ok else verdict.where,
        "reason": verdict.reason or None,
    }


def error_columns(verdict: Verdict) -> Row:
    """The worst error, what is allowed, and their ratio; None for what is no number."""
    known = math.isfinite(verdict.worst) and verdict.allowed > 0
    return {
        "error": verdict.worst if known else None,
        "allowed": verdict.allowed if known else None,
        "of_allowed": round(verdict.worst / verdict.allowed, 3) if known else None,
    }


def _used(rows: list[Row]) -> list[str]:
    """Columns of the table: those that say something."""
    shown = [name for name in COLUMNS if name not in ("error", "allowed")]
    return [name for name in shown if any(row.get(name) is not None for row in rows)]
