"""Measurements as files that people send each other: JSON lines, checked on the way in."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from flashsmith.base.errors import ArgumentError
from flashsmith.base.whole_file import written_whole
from flashsmith.tuner.store.measurement import Measurement, measurement_from_line
from flashsmith.tuner.store.outcome import Timed


def write_lines(measurements: Iterable[Measurement], path: Path) -> int:
    """Writes one line a measurement, beside the place and then renamed; returns how many."""
    lines = [m.to_line() for m in measurements]
    with written_whole(path) as beside:
        beside.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return len(lines)


def read_lines(path: Path, *, is_ours: bool = False) -> list[Measurement]:
    """Every measurement of a file; the first line that is none is named in the error.

    A first call reads a file that comes with the package, and is quick because it `is_ours`.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ArgumentError(f"{path} cannot be read ({error}); give a JSON lines file.") from error
    return [
        measurement_from_line(line, f"{path} line {number}", is_ours=is_ours)
        for number, line in enumerate(text.splitlines(), start=1)
        if line.strip()
    ]


def read_any(path: Path) -> list[Measurement]:
    """The measurements of a JSON lines file or of a results file."""
    if not path.exists():
        raise ArgumentError(f"{path} does not exist; give a results file or a JSON lines file.")
    with path.open("rb") as file:
        is_store = file.read(16) == b"SQLite format 3\0"
    if not is_store:
        return read_lines(path)
    from flashsmith.tuner.store.database import read_store  # here: reading lines needs no SQLite

    return read_store(path, is_foreign=True)


def choosable_table(measurements: Iterable[Measurement], gpu: str) -> list[Measurement]:
    """What a choice may be made by on a GPU: gated times of kernels as they are now."""
    from flashsmith.tuner.store.stale import stale_measurements  # here: lines need no compiler

    timed = [m for m in measurements if m.gate and isinstance(m.outcome, Timed)]
    mine = [m for m in timed if m.key.gpu == gpu]
    stale = {m.key for m in stale_measurements(mine)}
    return [m for m in mine if m.key not in stale]
