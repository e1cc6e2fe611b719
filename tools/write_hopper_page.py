"""Writes the tables of docs/kernels/hopper.md from the committed records of an H200.

Knob effects come from the tuner's first pass over the set `hopper`: two configurations that differ
in one knob, on the same problems in the same run. The comparison comes from an exploration with
earlier kernels, the ladder from benchmarks/hopper_h200.py. A test holds the page against this.
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
EXPLORED = ROOT / "benchmarks/results/h200/hopper_exploration.jsonl"
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
        return "Not measured yet; `benchmarks/hopper_h200.py` with `--parts ladder` does it.\n"
    steps = [key for key in lines[0] if key.startswith("hopper(")]
    lengths = [line["length"] for line in lines]
    text = f"| step | {' | '.join(map(str, lengths))} |\n|---|{'---|' * len(lengths)}\n"
    for step in steps:
        text += f"| `{step}` | {' | '.join(str(line[step]) for line in lines)} |\n"
    return text


def exploration_table() -> str:
    """The best configuration of each cell beside cuDNN and the prototype's best variant."""
    cells: dict[Cell, dict[str, Line]] = {}
    for line in lines_of(EXPLORED):
        what = line["what"]
        cell = (what["d_head"], what["causal"], what["k_len"])
        cells.setdefault(cell, {})[what["name"]] = line["result"]
    text = (
        "| d_head | mask | length | ours | prototype | cuDNN | over prototype | over cuDNN "
        "| control |\n|---|---|---|---|---|---|---|---|---|\n"
    )
    gains: list[tuple[float, float]] = []
    for (d, causal, length), results in cells.items():
        ours = max((r for n, r in results.items() if n.startswith("hopper(")), key=_rate)
        theirs, cudnn = results[ours["base"]], results["cuDNN"]
        gains.append((ours["ratio"], ours["ratio"] / cudnn["ratio"]))
        text += (
            f"| {d} | {'causal' if causal else 'full'} | {length} | {_rate(ours):.0f} "
            f"| {_rate(theirs):.0f} | {_rate(cudnn):.0f} | {gains[-1][0]:.3f} "
            f"| {gains[-1][1]:.3f} | {ours['control']:.3f} |\n"
        )
    for place, name in enumerate(("the prototype", "cuDNN")):
        values = [gain[place] for gain in gains]
        text += f"\nOver {name}: geometric mean {mean(values):.3f}, least {min(values):.3f}.\n"
    return text


def _rate(result: Line) -> float:
    return float(result["tflops"])


TABLES = {"knobs": knob_table, "ladder": ladder_table, "exploration": exploration_table}


def page_with_tables(page: str) -> str:
    """The page with every table written anew between its marks."""
    for name, table in TABLES.items():
        marks = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
        page, count = marks.subn(lambda m, t=table: f"{m[1]}{t()}{m[2]}", page)
        assert count == 1, name
    return page


if __name__ == "__main__":
    PAGE.write_text(page_with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
