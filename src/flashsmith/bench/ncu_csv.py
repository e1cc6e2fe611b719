"""What Nsight Compute prints with `--csv --page raw`: one row a kernel, read into numbers.

The table is a header, a row of units, and then kernels; lines of the tool's own (`==PROF== …`) and
of the program may stand around it.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass

from flashsmith.base.errors import DamagedFile

NAME, NUMBER = "Kernel Name", "ID"
# Older versions spell the units out, and scale them unless told not to.
_SCALE = {
    "ns": 1e-3,
    "nsecond": 1e-3,
    "us": 1.0,
    "usecond": 1.0,
    "ms": 1e3,
    "msecond": 1e3,
    "s": 1e6,
    "second": 1e6,
    "Kbyte": 1e3,
    "Mbyte": 1e6,
    "Gbyte": 1e9,
}


@dataclass(frozen=True, slots=True)
class ProfiledKernel:
    """One kernel that was profiled; times are in µs, bytes in bytes, what has no number is None."""

    name: str
    metrics: dict[str, float | None]


def parse_ncu_csv(text: str) -> list[ProfiledKernel]:
    """The kernels of a log in the order of their launches; none where there is no table."""
    rows = list(csv.reader(_table_lines(text)))
    if not rows:
        return []
    header = rows[0]
    if len(rows) < 2 or len(rows[1]) != len(header) or rows[1][header.index(NUMBER)]:
        raise DamagedFile(
            "Nsight Compute's table has no row of units below its header; it is read as "
            "`--csv --page raw` writes it; use Nsight Compute 2022 or later."
        )
    units = dict(zip(header, rows[1], strict=True))
    kernels = []
    for row in rows[2:]:
        if len(row) != len(header):
            raise DamagedFile(f"A row of Nsight Compute's table is cut off: {','.join(row)[:80]}")
        cells = dict(zip(header, row, strict=True))
        metrics = {
            name: _number(cell, units[name])
            for name, cell in cells.items()
            if "__" in name and not name.startswith("__")
        }
        kernels.append((int(cells[NUMBER]), ProfiledKernel(cells[NAME], metrics)))
    return [kernel for _, kernel in sorted(kernels, key=lambda pair: pair[0])]


def _table_lines(text: str) -> Iterator[str]:
    """The header and what follows it, without lines that are no part of the table."""
    inside = False
    for line in text.splitlines():
        inside = inside or line.startswith(f'"{NUMBER}",')
        if inside and line.startswith('"'):
            yield line


def _number(cell: str, unit: str) -> float | None:
    """`1,234.5` as a number in the unit that all rows share; None for `n/a` and words."""
    try:
        value = float(cell.replace(",", ""))
    except ValueError:
        return None
    return value * _SCALE.get(unit, 1.0)
