"""Rows as a table of a terminal: what is constant stands above it, and a row is one line."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from flashsmith.base.errors import ConfigError
from flashsmith.base.plain_text import plain
from flashsmith.kernels import KernelConfig, parse_config
from flashsmith.kernels.varying import changed, varying

Row = Mapping[str, object]

MOST_ROWS = 10  # unless all are asked for
_GAP = 2  # letters between columns
_LEAST = 8  # letters that a cut text keeps
_ON_ITS_SIDE = 3  # rows that may stand side by side as columns where the table is too wide
_LEAST_CHANGE = 24  # and that a configuration keeps which is told by its changes
_NAMED = 4  # columns without room that are named; more are counted
# Columns that go first where there is little room.
_SPARED = ("bits", "same_as", "protocol", "imported", "when", "compile_s", "seconds")
_PROBLEM = "problem"  # its text is a list of dimensions
_CONFIGS = ("config", "short_form", "contender", "before", "after", "same_as")
_COUNTED = 10**9  # whole numbers from here on are estimates, or not read to the last digit
_WORDS = {10**9: "billion", 10**12: "trillion", 10**15: "quadrillion"}
_SMALL = 0.01  # three places behind the point say too little of what is below
_AGAINST = "against_the_"  # first, or row above: the column of changes
# What is copied whole: lines do not break at spaces in it.
_SHORT_FORM = re.compile(r"(?<!\w)\w*\([^(),]*,[^()]*\)(?:: [\w+]+)?")


@dataclass(frozen=True, slots=True)
class _Column:
    """A name, and a text for each row."""

    name: str
    texts: tuple[str, ...]
    is_number: bool = False
    folds: bool = False  # prose: takes as many lines as it needs
    width: int = 0  # as it is drawn; 0: not yet decided


@dataclass(frozen=True, slots=True)
class _Layout:
    """One way to write the rows: what all share, and the columns of the rest."""

    facts: tuple[str, ...]
    columns: tuple[_Column, ...]
    is_relative: bool = False  # configurations are told by what they change in another
    is_short: bool = False  # problems are told by some of their dimensions
    left_out: tuple[str, ...] = ()

    @property
    def letters(self) -> int:
        """How long its texts are together."""
        return sum(len(text) for column in self.columns for text in column.texts)


def cell_text(value: object) -> str:
    """A value as a table shows it."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}" if abs(value) < _COUNTED else _in_words(value)
    if isinstance(value, float) and 0 < abs(value) < _SMALL:
        return f"{value:.3g}"
    if isinstance(value, float):
        return f"{value:,.3f}" if abs(value) < 100 else f"{value:,.1f}"
    return plain(str(value))


def _in_words(count: int) -> str:
    """A large number to three digits, as in 5.5 trillion."""
    rounded = float(f"{count:.3g}")
    for unit, word in _WORDS.items():
        if abs(rounded) < 1000 * unit:
            return f"{rounded / unit:.3g} {word}"
    return f"{count:.3g}"


def table_lines(
    rows: Sequence[Row],
    names: Sequence[str],
    *,
    width: int,
    title: str = "",
    every: bool = True,
    prose: Sequence[str] = (),
) -> list[str]:
    """The lines of a table; columns of `prose` are folded, all others are one line a row.

    What all rows share stands above the table. Unless `every` row is wanted, ten are shown.
    """
    shown = len(rows) if every else min(len(rows), MOST_ROWS)
    whole = list(_layouts(rows, names, prose))
    layouts = [_cut_to(shown, layout) for layout in (*whole, *map(_shortened, whole))]
    layout = _chosen(layouts, width)
    heads = (*map(plain, title.splitlines()), *layout.facts)
    head = [line for text in heads for line in _wrapped(text, width)]
    head += [""] if head else []
    if not layout.columns:
        return head
    if _needed(layout.columns) > width and len(rows) <= _ON_ITS_SIDE:
        return [*head, *_on_its_side(layout.columns, width), ""]
    layout = _fitted(layout, width)
    more = [f"{len(rows) - shown} more: --all"] if shown < len(rows) else []
    foot = [line for text in (*more, *_remarks(layout)) for line in _wrapped(text, width)]
    return [*head, *_upright(layout.columns), *foot, ""]


def _cut_to(shown: int, layout: _Layout) -> _Layout:
    columns = [replace(column, texts=column.texts[:shown]) for column in layout.columns]
    return replace(layout, columns=tuple(c for c in columns if any(c.texts)))


def _chosen(layouts: Sequence[_Layout], width: int) -> _Layout:
    """The first whose rows are one line each; else the one with the least text to cut."""
    absolute = [layout for layout in layouts if not layout.is_relative]
    relative = [layout for layout in layouts if layout.is_relative]
    for layout in (*absolute, *map(_spared, absolute), *relative, *map(_spared, relative)):
        if _needed(layout.columns) <= width:
            return layout
    return min(layouts, key=lambda layout: (_smallest(layout.columns), layout.letters))


def _shortened(layout: _Layout) -> _Layout:
    """The layout with problems told by no more than tells them apart, and what they share above."""
    column = next((column for column in layout.columns if column.name == _PROBLEM), None)
    parts = [text.split(", ") for text in column.texts] if column else []
    if column is None or len({len(part) for part in parts}) != 1:
        return layout
    different, kept = len(set(column.texts)), list(range(len(parts[0])))
    for n in range(len(parts[0])):
        fewer = [m for m in kept if m != n]
        if len({tuple(part[m] for m in fewer) for part in parts}) == different:
            kept = fewer
    same = [part for n, part in enumerate(parts[0]) if all(other[n] == part for other in parts)]
    texts = tuple(", ".join(part[m] for m in kept) for part in parts)
    columns = tuple(replace(c, texts=texts) if c is column else c for c in layout.columns)
    facts = (*layout.facts, f"{_PROBLEM} {', '.join(same)}") if same else layout.facts
    return replace(layout, facts=facts, columns=columns, is_short=True)


def _spared(layout: _Layout) -> _Layout:
    names = [column.name for column in layout.columns if column.name in _SPARED]
    return _without(layout, names)


def _without(layout: _Layout, names: Sequence[str]) -> _Layout:
    kept = tuple(column for column in layout.columns if column.name not in names)
    return replace(layout, columns=kept, left_out=(*names, *layout.left_out))


def _layouts(rows: Sequence[Row], names: Sequence[str], prose: Sequence[str]) -> Iterator[_Layout]:
    """Ways to write the rows, each narrower than the one before."""
    columns = [_column(rows, name, name in prose) for name in names]
    main = next((name for name in names if name in _CONFIGS), None)
    configs = [_config_of(row.get(main)) for row in rows] if main else []
    known = [config for config in configs if config is not None]
    if main is None or len(rows) < 2 or len(known) < len(rows):
        yield _without_constants(columns)
        return
    position = names.index(main)
    before, after = columns[:position], columns[position + 1 :]
    after = [_beside(column, known, rows) for column in after]
    found = varying(known)
    for table in (found.table(), found.narrow_table()):
        yield _with_configs(before, table, after, (found.caption,))
    first = known[:1]
    for name, others in (("first", first * len(known)), ("row_above", [*first, *known[:-1]])):
        changes = (changed(a, b) or "–" for a, b in zip(others, known, strict=True))
        table = [{f"{_AGAINST}{name}": text} for text in changes]
        layout = _with_configs(before, table, after, (f"first: {first[0].short_form()}",))
        yield replace(layout, is_relative=True)


def _with_configs(
    before: list[_Column],
    table: Sequence[Mapping[str, str]],
    after: list[_Column],
    facts: tuple[str, ...],
) -> _Layout:
    mine = [_Column(name, tuple(row[name] for row in table)) for name in table[0]]
    rest = _without_constants([*before, *after])
    kept = [column for column in before if column in rest.columns]
    others = [column for column in rest.columns if column not in kept]
    return _Layout((*facts, *rest.facts), (*kept, *mine, *others))


def _column(rows: Sequence[Row], name: str, folds: bool) -> _Column:
    values = [row.get(name) for row in rows]
    numbers = [isinstance(v, int | float) and not isinstance(v, bool) for v in values]
    is_number = all(n or v is None for n, v in zip(numbers, values, strict=True))
    return _Column(name, tuple(map(cell_text, values)), is_number, folds)


def _config_of(value: object) -> KernelConfig | None:
    """The configuration whose short form is exactly the value, or None."""
    try:
        config = parse_config(value) if isinstance(value, str) else None
    except ConfigError:
        return None
    return config if config is not None and config.short_form() == value else None


def _beside(column: _Column, mine: Sequence[KernelConfig], rows: Sequence[Row]) -> _Column:
    """A second column of configurations says how they differ from the row's own."""
    if column.name not in _CONFIGS:
        return column
    others = [_config_of(row.get(column.name)) for row in rows]
    texts = [
        text if other is None else changed(own, other) or "the same"
        for text, own, other in zip(column.texts, mine, others, strict=True)
    ]
    return replace(column, texts=tuple(texts))


def _without_constants(columns: Sequence[_Column]) -> _Layout:
    """Columns that say the same in every row become facts; empty ones go."""
    facts, kept = [], []
    for column in columns:
        texts = set(column.texts)
        if texts == {""}:
            continue
        if len(column.texts) > 1 and len(texts) == 1:
            facts.append(f"{column.name} {column.texts[0]}")
        else:
            kept.append(column)
    return _Layout((", ".join(facts),) if facts else (), tuple(kept))


def _needed(columns: Sequence[_Column]) -> int:
    """The width of a table in which nothing is cut; prose may be folded to half of it."""
    widths = [min(_natural(c), 40) if c.folds else _natural(c) for c in columns]
    return sum(widths) + _GAP * (len(columns) - 1)


def _natural(column: _Column) -> int:
    return max(max(map(len, column.texts), default=0), *map(len, _pieces(column.name)))


def _pieces(name: str) -> list[str]:
    """Where a heading may be divided: `blocks_`, `per_`, `sm`."""
    if len(name) < _LEAST:
        return [name]
    return re.findall(r"[^_ ]+[_ ]?|[_ ]+", name)


def _fitted(layout: _Layout, width: int) -> _Layout:
    """The layout with the widths of its columns; texts are cut, and columns go if they must."""
    while len(layout.columns) > 1 and _smallest(layout.columns) > width:
        layout = _without(layout, [layout.columns[-1].name])
    columns = layout.columns
    widths = [_natural(column) for column in columns]
    room = width - _GAP * (len(columns) - 1)
    while sum(widths) > room:
        texts = [n for n, column in enumerate(columns) if widths[n] > _floor(column)]
        if not texts:
            break
        widest = max(texts, key=lambda n: (columns[n].folds, widths[n]))
        widths[widest] -= 1
    for n, column in enumerate(columns):  # a heading in one line, where there is room for it
        more = len(column.name) - widths[n]
        if 0 < more <= room - sum(widths):
            widths[n] += more
    drawn = (replace(c, width=w) for c, w in zip(columns, widths, strict=True))
    return replace(layout, columns=tuple(drawn))


def _remarks(layout: _Layout) -> list[str]:
    """What had to be cut or left out, in words."""
    remarks = []
    if any(not c.folds and any(len(text) > c.width for text in c.texts) for c in layout.columns):
        remarks.append("Texts that end in … are whole in --csv.")
    if layout.is_short:
        remarks.append("Problems are told by what tells them apart; they are whole in --csv.")
    if layout.left_out:
        names = ", ".join(layout.left_out)
        few = len(layout.left_out) <= _NAMED
        what = names if few else f"{len(layout.left_out)} columns"
        remarks.append(f"No room for {what}; --csv shows all.")
    return remarks


def _floor(column: _Column) -> int:
    """The least width of a column: a number is never cut."""
    natural = _natural(column)
    if column.is_number:
        return natural
    return min(natural, _LEAST_CHANGE if column.name.startswith(_AGAINST) else _LEAST)


def _smallest(columns: Sequence[_Column]) -> int:
    return sum(map(_floor, columns)) + _GAP * (len(columns) - 1)


def _upright(columns: Sequence[_Column]) -> list[str]:
    headings = [_divided(column.name, column.width) for column in columns]
    height = max(map(len, headings))
    lowered = [[""] * (height - len(heading)) + heading for heading in headings]
    lines = [_line(columns, [heading[n] for heading in lowered]) for n in range(height)]
    lines.append("─" * (sum(c.width for c in columns) + _GAP * (len(columns) - 1)))
    for number in range(len(columns[0].texts)):
        cells = [_cell_lines(column, column.texts[number]) for column in columns]
        height = max(map(len, cells))
        filled = [[*cell, *[""] * (height - len(cell))] for cell in cells]
        lines += [_line(columns, [cell[n] for cell in filled]) for n in range(height)]
    return lines


def _line(columns: Sequence[_Column], cells: Sequence[str]) -> str:
    padded = [
        cell.rjust(column.width) if column.is_number else cell.ljust(column.width)
        for column, cell in zip(columns, cells, strict=True)
    ]
    return (" " * _GAP).join(padded).rstrip()


def _cell_lines(column: _Column, text: str) -> list[str]:
    if len(text) <= column.width:
        return [text]
    if column.folds:
        return textwrap.wrap(text, column.width)
    return [f"{text[: column.width - 1]}…"]


def _divided(name: str, width: int) -> list[str]:
    """A heading on as many lines as it needs; a piece that is too long is cut."""
    lines = [""]
    for piece in _pieces(name):
        if lines[-1] and len(lines[-1] + piece) > width:
            lines.append("")
        lines[-1] += piece[:width]
    return lines


def _on_its_side(columns: Sequence[_Column], width: int) -> list[str]:
    """A line for each column, the rows beside each other."""
    names = max(len(column.name) for column in columns)
    count = len(columns[0].texts)
    room = max((width - names - _GAP * count) // count, _LEAST)
    lines = []
    for column in columns:
        cells = [textwrap.wrap(text, room) or [""] for text in column.texts]
        for n in range(max(map(len, cells))):
            beside = [(c[n] if n < len(c) else "").ljust(room) for c in cells]
            name = column.name if n == 0 else ""
            lines.append((" " * _GAP).join([name.ljust(names), *beside]).rstrip())
    return lines


def _wrapped(text: str, width: int) -> list[str]:
    """Lines of a text; a short form stays on one, however long it is."""
    whole = _SHORT_FORM.sub(lambda found: found[0].replace(" ", "\0"), text)
    lines = textwrap.wrap(whole, max(width, _LEAST), break_on_hyphens=False, break_long_words=False)
    return [line.replace("\0", " ") for line in lines]
