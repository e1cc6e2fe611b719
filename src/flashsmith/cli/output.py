"""How every verb speaks: rows as a table, JSON or CSV; messages and errors apart from data."""

from __future__ import annotations

import csv as csv_module
import io
import json as json_module
import shutil
from collections.abc import Mapping, Sequence

import typer

from flashsmith.base.errors import ArgumentError

Row = Mapping[str, object]

_PIPED_WIDTH = 160  # columns of a table that is not written to a terminal


def show(
    rows: Sequence[Row],
    *,
    json: bool = False,
    csv: bool = False,
    title: str = "",
    columns: Sequence[str] | None = None,
) -> None:
    """Writes flat rows: a table fitted to the terminal, one JSON array, or CSV, same columns."""
    if json and csv:
        raise ArgumentError("--json and --csv are both given; output has one form; drop one.")
    names = list(columns) if columns is not None else _columns(rows)
    if json:
        typer.echo(json_module.dumps([{n: row.get(n) for n in names} for row in rows], indent=1))
    elif csv:
        typer.echo(_csv_text(rows, names), nl=False)
    else:
        _print_table(rows, names, title)


def note(text: str) -> None:
    """Writes a line for the reader, never into data that is piped."""
    typer.echo(text, err=True)


def say(text: str) -> None:
    """Writes a line that is the verb's answer."""
    typer.echo(text)


def terminal_width() -> int:
    """Columns to fit a table into; COLUMNS and the terminal decide, in this order."""
    return shutil.get_terminal_size((_PIPED_WIDTH, 50)).columns


def cell_text(value: object) -> str:
    """A value as a table shows it."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.3f}" if abs(value) < 100 else f"{value:,.1f}"
    return str(value)


def _columns(rows: Sequence[Row]) -> list[str]:
    """Every key of every row, in the order of first appearance."""
    return list(dict.fromkeys(name for row in rows for name in row))


def _csv_text(rows: Sequence[Row], names: list[str]) -> str:
    text = io.StringIO()
    writer = csv_module.writer(text, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([["" if row.get(n) is None else row.get(n) for n in names] for row in rows])
    return text.getvalue()


def _print_table(rows: Sequence[Row], names: list[str], title: str) -> None:
    # rich is imported where a table is drawn, so that `--json` and `--version` start fast.
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE, title=title or None, title_justify="left", pad_edge=False)
    for name in names:
        values = [row.get(name) for row in rows]
        number = all(isinstance(v, int | float) or v is None for v in values)
        table.add_column(
            name, justify="right" if number else "left", overflow="fold", no_wrap=number
        )
    for row in rows:
        table.add_row(*(Text(cell_text(row.get(name))) for name in names))
    Console(width=terminal_width(), highlight=False).print(table)
