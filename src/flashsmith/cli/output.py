"""How every verb speaks: rows as a table, JSON or CSV; messages and errors apart from data."""

from __future__ import annotations

import csv as csv_module
import io
import json as json_module
import shutil
from collections.abc import Mapping, Sequence

import typer

from flashsmith.base.plain_text import csv_text, plain

Row = Mapping[str, object]

_PIPED_WIDTH = 160  # columns of a table that is not written to a terminal


def show(
    rows: Sequence[Row],
    *,
    json: bool = False,
    csv: bool = False,
    title: str = "",
    columns: Sequence[str] | None = None,
    every: bool = True,
    prose: Sequence[str] = (),
) -> None:
    """Writes flat rows: a table fitted to the terminal, one JSON array, or CSV, same columns.

    A table shows its first rows unless `every` one is wanted, JSON and CSV have all of them.
    Columns of `prose` are folded where they are long; other texts are cut.
    """
    names = list(columns) if columns is not None else _columns(rows)
    if json:
        typer.echo(json_module.dumps([{n: row.get(n) for n in names} for row in rows], indent=1))
    elif csv:
        typer.echo(_csv_text(rows, names), nl=False)
    elif rows:
        from flashsmith.cli.table import table_lines

        lines = table_lines(
            rows, names, width=terminal_width(), title=title, every=every, prose=prose
        )
        typer.echo("\n".join(lines))
    else:
        note(f"{title or 'nothing to show'}: no rows")


def note(text: str) -> None:
    """Writes a line for the reader, never into data that is piped."""
    typer.echo("\n".join(map(plain, text.splitlines())), err=True)


def say(text: str) -> None:
    """Writes a line that is the verb's answer."""
    typer.echo(text)


def terminal_width() -> int:
    """Columns to fit a table into; COLUMNS and the terminal decide, in this order."""
    return shutil.get_terminal_size((_PIPED_WIDTH, 50)).columns


def _columns(rows: Sequence[Row]) -> list[str]:
    """Every key of every row, in the order of first appearance."""
    return list(dict.fromkeys(name for row in rows for name in row))


def _csv_text(rows: Sequence[Row], names: list[str]) -> str:
    text = io.StringIO()
    writer = csv_module.writer(text, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([[_csv_cell(row.get(n)) for n in names] for row in rows])
    return text.getvalue()


def _csv_cell(value: object) -> object:
    """Numbers stay numbers; a text of someone else is not computed by a spreadsheet."""
    if value is None or isinstance(value, bool | int | float):
        return "" if value is None else value
    return csv_text(str(value))
