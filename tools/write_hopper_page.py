"""Writes the tables of docs/kernels/hopper.md from the committed records of an H200.

Knob effects come from the tuner's first pass over the set `hopper`: two configurations that differ
in one knob, on the same problems in the same run. The ladder and the comparison come from
benchmarks/hopper_h200.py. A test holds the page against this.
"""

from __future__ import annotations

import itertools
import json
import math
import re
import statistics
from pathlib import Path
from typing import Any

from flashsmith.config import parse_config
from flashsmith.config.hopper import HopperForwardKernelConfig

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/kernels/hopper.md"
TUNED = ROOT / "benchmarks/results/h200/tune.jsonl"
COMPARED = ROOT / "benchmarks/results/h200/hopper.jsonl"
FIRST_PASS = "screen"

Cell = tuple[int, bool, int]
Line = dict[str, Any]  # Any: a JSON record


def lines_of(path: Path) -> list[Line]:
    """The records of a file, or none."""
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    return [json.loads(line) for line in text.splitlines()]


def first_pass() -> dict[HopperForwardKernelConfig, dict[Cell, float]]:
    """Microseconds of every Hopper configuration on every problem."""
    found: dict[HopperForwardKernelConfig, dict[Cell, float]] = {}
    for line in lines_of(TUNED):
        if line["protocol"] == FIRST_PASS and line["config"].startswith("hopper"):
            config = parse_config(line["config"])
            assert isinstance(config, HopperForwardKernelConfig)
            p = line["problem"]
            cell = (p["d_head"], p["causal"], p["k_len"])
            found.setdefault(config, {})[cell] = line["median_us"]
    return found


def mean(values: list[float]) -> float:
    """Geometric mean."""
    return math.exp(statistics.fmean(map(math.log, values)))


def knob_table() -> str:
    """One row for each pair of configurations that differ in one knob."""
    rows = []
    measured = first_pass()
    names = tuple(HopperForwardKernelConfig.knobs())
    for one, other in itertools.combinations(measured, 2):
        changed = [n for n in names if getattr(one, n) != getattr(other, n)]
        if len(changed) == 1:
            a, b = sorted((one, other), key=lambda c: getattr(c, changed[0]))
            rows.append((changed[0], a, b, measured[a], measured[b]))
    rows.sort(key=lambda row: (row[0], row[1]))
    head = "| knob | from → to | at d_head, rows x B_c | full | causal |\n|---|---|---|---|---|\n"
    return head + "".join(_knob_row(*row) for row in rows)


def _knob_row(
    knob: str,
    a: HopperForwardKernelConfig,
    b: HopperForwardKernelConfig,
    before: dict[Cell, float],
    after: dict[Cell, float],
) -> str:
    gains = []
    for causal in (False, True):
        ratios = [before[c] / after[c] for c in before if c[1] is causal and c in after]
        gains.append(f"{100 * (mean(ratios) - 1):+.1f} %")
    values = [getattr(getattr(c, knob), "name", getattr(c, knob)) for c in (a, b)]
    also = a.statistics.name + (", l_mma" if a.l_by_mma and knob != "l_by_mma" else "")
    place = f"{a.d_head}, {a.tile_q} x {a.B_c}" + (f" ({also})" if knob != "statistics" else "")
    return f"| {knob} | {values[0]} → {values[1]} | {place} | {gains[0]} | {gains[1]} |\n"


def ladder_table() -> str:
    """TFLOP/s of the ladder's steps."""
    lines = [line for line in lines_of(COMPARED) if line["part"] == "ladder"]
    if not lines:
        return "Not measured yet.\n"
    steps = [key for key in lines[0] if key.startswith("hopper(")]
    lengths = [line["length"] for line in lines]
    text = f"| step | {' | '.join(map(str, lengths))} |\n|---|{'---|' * len(lengths)}\n"
    for step in steps:
        text += f"| `{step}` | {' | '.join(str(line[step]) for line in lines)} |\n"
    return text


def comparison_table() -> str:
    """TFLOP/s of what `choose` picks beside cuDNN and the prototype, burst and sustained."""
    lines = [line for line in lines_of(COMPARED) if line["part"] in ("burst", "sustained")]
    if not lines:
        return "Not measured yet.\n"
    text = (
        "| | d_head | mask | length | ours | cuDNN | over cuDNN | over prototype |\n"
        "|---|---|---|---|---|---|---|---|\n"
    )
    for line in lines:
        rates = line["tflops"]
        text += (
            f"| {line['part']} | {line['d_head']} | {'causal' if line['causal'] else 'full'} "
            f"| {line['length']} | {rates['ours']:.0f} | {rates['cuDNN']:.0f} "
            f"| {line['over_cudnn']:.3f} | {line['over_prototype']:.3f} |\n"
        )
    for part in ("burst", "sustained"):
        for key in ("over_cudnn", "over_prototype"):
            values = [line[key] for line in lines if line["part"] == part and line[key]]
            if values:
                text += f"\n{part}, {key.replace('_', ' ')}: geometric mean {mean(values):.3f}, "
                text += f"least {min(values):.3f}.\n"
    return text


TABLES = {"knobs": knob_table, "ladder": ladder_table, "comparison": comparison_table}


def page_with_tables(page: str) -> str:
    """The page with every table written anew between its marks."""
    for name, table in TABLES.items():
        marks = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
        page, count = marks.subn(lambda m, t=table: f"{m[1]}{t()}{m[2]}", page)
        assert count == 1, name
    return page


if __name__ == "__main__":
    PAGE.write_text(page_with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
