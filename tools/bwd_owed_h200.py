"""Measures on a GPU what gradients are held to beside their speed in the papers' grid.

    PYTHONPATH=src python tools/bwd_owed_h200.py -o FILE [--fa3 FILE.py] [--budget 240] \\
        [--parts compile,first,…]

Every part is a process of its own with a time limit: one that fails, hangs or loses the GPU's
context is named, and the others go on. The kernel cache is a new folder that the parts share, so
the first of them compiles from nothing. Records are appended to FILE; the table, with the bar of
every line, comes last. FILE.py is FlashAttention-3's (a file with `load` and `backward`).

    compile     seconds of every kernel of the sets, one a core
    sanitize    memcheck of both families; racecheck of mma.sync and of the kernels around wgmma's
    first       a process's first gradients with an empty kernel cache, and what ships without one
    errors      each gradient's error beside cuDNN's, of both families, against float64
    shapes      groups, odd lengths, other layouts, fp16: by useful FLOP, beside the plain problem
    mma         mma.sync beside torch's FlashAttention-2
    repeats     bits of 100 runs at full size, of both families
    sustained   under load, sums in any order and the default, beside FlashAttention-3
    train       losses of 300 steps of examples/train_tiny.py, twice, bit by bit
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from bwd_owed_base import Line, Part
from bwd_owed_parts import PARTS

# Seconds that a part may take; what it found until then counts.
LIMITS = {
    "compile": 75,
    "sanitize": 300,
    "first": 40,
    "errors": 60,
    "shapes": 60,
    "mma": 60,
    "repeats": 90,
    "sustained": 210,
    "train": 60,
}
assert PARTS.keys() == LIMITS.keys()


def run_part(name: str, limit: float, lines: Path, cache: str) -> str:
    """A child of its own; what went wrong with it, or nothing."""
    command = [sys.executable, *sys.argv, f"--part={name}", f"--limit={limit}", f"--lines={lines}"]
    child = subprocess.Popen(
        command,
        env=os.environ | {"FLASHSMITH_CACHE_DIR": cache},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        text, _ = child.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        _end_group(child.pid)
        text, _ = child.communicate()
        return f"not done after {limit:.0f} s: {' '.join(text.splitlines()[-1:])}"
    _end_group(child.pid)
    return "" if child.returncode == 0 else " ".join(text.strip().splitlines()[-1:]) or "failed"


def _end_group(leader: int) -> None:
    """Ends what a part started and left."""
    with suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)


def parsed() -> argparse.Namespace:
    """The command line; the last three are those of a part's own process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, required=True, help="file of the records")
    parser.add_argument("--fa3", help="FlashAttention-3's file")
    parser.add_argument("--budget", type=float, default=240.0, help="seconds of everything")
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--steps", type=int, default=300, help="of training")
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    parser.add_argument("--limit", type=float, default=0.0, help=argparse.SUPPRESS)
    parser.add_argument("--lines", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    """Parts one after the other; the table is last."""
    arguments = parsed()
    if arguments.part:
        PARTS[arguments.part](Part(arguments))
        return
    begin = time.monotonic()
    table: list[Line] = []
    with tempfile.TemporaryDirectory() as cache:
        for name in arguments.parts.split(","):
            left = arguments.budget - (time.monotonic() - begin)
            lines, started = Path(cache) / f"{name}.lines", time.monotonic()
            wrong = "no time was left"
            if left > 5:
                wrong = run_part(name, min(LIMITS[name], left), lines, cache)
            if lines.exists():
                table += [Line(**json.loads(line)) for line in lines.read_text().splitlines()]
            if wrong:
                table.append(Line(f"{name} FAILED", wrong[:160], "", holds=False))
            print(f"{name}: {time.monotonic() - started:.0f} s {wrong[:200]}", flush=True)
    print()
    for line in table:
        mark = {True: "holds", False: "MISSED", None: ""}[line.holds]
        print(f"{line.what:76} {line.found:>12}  {line.bar:8} {mark}")
    missed = sum(line.holds is False for line in table)
    print(f"{missed} missed, {time.monotonic() - begin:.0f} s")


if __name__ == "__main__":
    main()
