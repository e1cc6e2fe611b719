"""How every verb speaks: rows as a table, JSON or CSV; messages and errors apart from data."""

from __future__ import annotations

import csv as csv_module
import io
import json as json_module
import shutil
from collections.abc import Iterator, Mapping, Sequence

import typer

Row = Mapping[str, object]

_PIPED_WIDTH = 160  # columns of a table that is not written to a terminal
_GAP, _FOLDED, _TURNED = 3, 16, 28  # between columns; of a folded text; of a row on its side


def show(
    rows: Sequence[Row],
    *,
    json: bool = False,
    csv: bool = False,
    title: str = "",
    columns: Sequence[str] | None = None,
) -> None:
    """Writes flat rows: a table fitted to the terminal, one JSON array, or CSV, same columns."""
    names = list(columns) if columns is not None else _columns(rows)
    if json:
        typer.echo(json_module.dumps([{n: row.get(n) for n in names} for row in rows], indent=1))
    elif csv:
        typer.echo(_csv_text(rows, names), nl=False)
    elif rows:
        _print_table(rows, names, title)
    else:
        note(f"{title or 'nothing to show'}: no rows")


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

    if rows and _least_width(rows, names) > terminal_width():
        for block in _turned(rows, names):
            _print_table(block, list(block[0]), title)
        return
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


def _least_width(rows: Sequence[Row], names: Sequence[str]) -> int:
    """Columns that a table needs: numbers and their names stay whole, texts can be folded."""
    return sum(_column_width([row.get(name) for row in rows], name) for name in names)


def _column_width(values: Sequence[object], name: str) -> int:
    longest = max(len(text) for text in (name, *map(cell_text, values)))
    is_number = all(isinstance(value, int | float) or value is None for value in values)
    return _GAP + (longest if is_number else min(longest, _FOLDED))


def _turned(rows: Sequence[Row], names: Sequence[str]) -> Iterator[list[Row]]:
    """The table on its side, a line for each column, as many rows at a time as fit beside them."""
    beside = terminal_width() - _GAP - max(map(len, names))
    at_once = max(beside // (_GAP + _TURNED), 1)
    for start in range(0, len(rows), at_once):
        shown = dict(enumerate(rows[start : start + at_once], start=start + 1))
        yield [
            {"": name} | {f"{number}": cell_text(row.get(name)) for number, row in shown.items()}
            for name in names
            if any(row.get(name) is not None for row in shown.values())
        ]
