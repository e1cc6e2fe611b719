"""Several configurations side by side: what they share, and a column for whatever differs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flashsmith.base.errors import ConfigError
from flashsmith.base.fields import Word, value_text
from flashsmith.kernels.kernel import KernelConfig
from flashsmith.kernels.parse import parse_config

KERNEL = "kernel"  # the column of the family
OTHER = "config"  # the column of a text that names no configuration
ON, OFF = "yes", "–"  # a word that holds no value, written or not
FLAGS = "with"  # the column that stands for all flags where there is little room


@dataclass(frozen=True, slots=True)
class Cell:
    """What one configuration has in one column."""

    text: str
    is_written: bool  # in the short form; else it is what the kernel does unless told otherwise


Cells = dict[str, Cell]
_NOTHING = Cell("", False)  # the other family has no such knob


@dataclass(frozen=True, slots=True)
class Varying:
    """What `varying` found: `rows` has one mapping for each configuration, in their order."""

    same: Cells
    columns: tuple[str, ...]
    rows: tuple[Cells, ...]

    @property
    def caption(self) -> str:
        """What all share, as one line: `sm80_forward, dtype BF16, d_head 128, async`."""
        return _sentence(self.same)

    def texts(self) -> list[str]:
        """What differs, a text for each configuration: `B_c 64, eager, load_tiles 0/2/2`."""
        return [_sentence(row) or "none of these" for row in self.rows]

    def table(self) -> list[dict[str, str]]:
        """What differs, a row for each configuration and a column for each knob."""
        return [{name: row[name].text for name in self.columns} for row in self.rows]

    def narrow_table(self) -> list[dict[str, str]]:
        """As `table`, with all flags in one column."""
        flags = [n for n in self.columns if {row[n].text for row in self.rows} <= {ON, OFF, ""}]
        if len(flags) < 2:
            return self.table()
        rows = []
        for row in self.rows:
            held = "+".join(name for name in flags if row[name].text == ON)
            others = {name: row[name].text for name in self.columns if name not in flags}
            rows.append({**others, FLAGS: held or OFF})
        return rows


def varying(configs: Sequence[KernelConfig]) -> Varying:
    """What configurations share and what differs, knob by knob.

    Knobs that one word of the short form spells stand in one column: `load_tiles` is 0/2/2.
    """
    return _side_by_side([_cells(config) for config in configs])


def varying_texts(names: Sequence[str]) -> Varying:
    """As `varying`, from texts; one that names no configuration stands in a column of its own."""
    return _side_by_side([_cells_of_text(name) for name in names])


def changed(before: KernelConfig, after: KernelConfig) -> str:
    """What differs in `after`: `eager, no buffer, load_tiles 0/2/2`; empty where nothing does."""
    old, new = _cells(before), _cells(after)
    return ", ".join(spoken(name, cell) for name, cell in new.items() if cell != old.get(name))


def _side_by_side(rows: Sequence[Cells]) -> Varying:
    names = list(dict.fromkeys(name for row in rows for name in row))
    whole = [{name: row.get(name, _NOTHING) for name in names} for row in rows]
    columns = tuple(name for name in names if len({row[name] for row in whole}) > 1)
    same = {name: whole[0][name] for name in names if name not in columns}
    return Varying(same, columns, tuple({name: row[name] for name in columns} for row in whole))


def _cells(config: KernelConfig) -> Cells:
    head = {name: Cell(value_text(getattr(config, name)), True) for name in config.head()}
    words = {_column(word): _word_cell(config, word) for word in config.words()}
    return {KERNEL: Cell(config.NAME, True), **head, **words}


def _cells_of_text(name: str) -> Cells:
    try:
        return _cells(parse_config(name))
    except ConfigError:
        return {OTHER: Cell(name, True)}


def _column(word: Word) -> str:
    """The word without its values: `load_{}_{}_{}_tiles` is `load_tiles`."""
    return "_".join(part for part in word.form.split("_") if part != "{}")


def _word_cell(config: KernelConfig, word: Word) -> Cell:
    values = {name: getattr(config, name) for name in word.names}
    is_written = values != word.absent_values()
    if word.is_flag:
        return Cell(ON if is_written else OFF, is_written)
    return Cell("/".join(value_text(value) for value in values.values()), is_written)


def _sentence(cells: Cells) -> str:
    return ", ".join(spoken(name, cell) for name, cell in cells.items() if cell.is_written)


def spoken(name: str, cell: Cell) -> str:
    """A cell in words: `B_c 64`, `eager`, `no eager`; a family is its own name."""
    if name in (KERNEL, OTHER):
        return cell.text
    flag = {ON: name, OFF: f"no {name}"}
    return flag.get(cell.text, f"{name} {cell.text}")
