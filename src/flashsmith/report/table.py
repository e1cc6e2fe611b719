"""A table of the page: texts, numbers and bars, with a title and how to read it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from flashsmith.kernels.varying import varying_texts
from flashsmith.report.markup import element, escape, prose

_TALL = 24  # rows from which on a table scrolls by itself
_LONG = 24  # letters of joined words that get a wide column
_MOST_KNOBS = 10  # columns of what varies; with more of them flags share one, or all do


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell; `small` stands below its text."""

    text: str
    small: str = ""
    kind: str = ""  # number, good, bad: how it is drawn
    bar: tuple[float, float] | None = None  # from where to where, in % of the cell


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under headings; `words` is what the page's filter reads of each row, if it does."""

    title: str
    reads: str
    heads: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    words: tuple[str, ...] = ()
    is_wide: bool = True

    def to_html(self) -> str:
        """The table in its card."""
        heads = "".join(
            element("th", name, _head_kind([row[n] for row in self.rows]))
            for n, name in enumerate(self.heads)
        )
        words = self.words or ("",) * len(self.rows)
        rows = "".join(map(_row_html, self.rows, words))
        table = f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"
        return (
            f'<figure class="card{" wide" if self.is_wide else ""}"><figcaption>'
            f"{element('h3', self.title)}{prose(self.reads)}</figcaption>"
            f'<div class="scroll{" tall" if len(self.rows) > _TALL else ""}">{table}</div></figure>'
        )


@dataclass(frozen=True, slots=True)
class KnobColumns:
    """Configurations as the page shows them: what all share, and columns for the rest."""

    caption: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def knob_columns(names: Sequence[str], stated: Collection[str] = ()) -> KnobColumns:
    """What varies between configurations, in as many columns as a page has room for.

    Not what another column has `stated`.
    """
    found = varying_texts(names)
    for table in (found.table(), found.narrow_table()):
        if len(table[0]) <= _MOST_KNOBS:
            heads = tuple(head for head in table[0] if head not in stated)
            rows = tuple(tuple(row[head] for head in heads) for row in table)
            return KnobColumns(found.caption, heads, rows)
    texts = tuple((text,) for text in found.texts())
    return KnobColumns(found.caption, ("configuration",), texts)


def whole(text: str) -> Cell:
    """A cell whose text stays on one line."""
    return Cell(text, kind="whole")


def number(text: str, small: str = "") -> Cell:
    """A cell whose text is a number, or empty."""
    return Cell(text, small, "number")


def _head_kind(cells: Sequence[Cell]) -> str:
    """A heading stands as its column does."""
    kinds = {cell.kind.partition(" ")[0] for cell in cells}
    return next((kind for kind in ("number", "step") if kind in kinds), "")


def _row_html(row: Sequence[Cell], words: str) -> str:
    named = f' data-words="{escape(words)}"' if words else ""
    return f"<tr{named}>{''.join(map(_cell_html, row))}</tr>"


def _cell_html(cell: Cell) -> str:
    # Words of a short form may stand on lines of their own.
    inner = element("span", cell.text).replace("+", "+<wbr>")
    inner += element("small", cell.small) if cell.small else ""
    if cell.bar is not None:
        start, end = sorted(cell.bar)
        extent = f"margin-left:{start:.1f}%;width:{max(end - start, 0.5):.1f}%"
        inner += f'<b class="bar" style="{extent}"></b>'
    kind = cell.kind or ("words" if "+" in cell.text and len(cell.text) > _LONG else "")
    return f'<td class="{kind}">{inner}</td>' if kind else f"<td>{inner}</td>"
