"""`make fuzz`: draws damage of every kind and shows that none of it is silent, wrong or endless.

python tests/fuzz/run.py [--seed N] [--only TARGET]
"""

import argparse
import logging
import random
import sys
import tempfile
import time
import traceback
from pathlib import Path

import doors
import files
import programs

# How many of each `make fuzz` draws, and how many the tests do.
TARGETS = {
    "cache entries": (files.cache_entries, 900, 40),
    "bundles": (files.bundles, 2000, 60),
    "import lines": (files.import_lines, 1000, 100),
    "crafted stores": (files.stores, 50, 10),
    "PTX texts": (programs.ptx_texts, 75, 10),
    "command lines": (programs.command_lines, 700, 25),
    "calls": (programs.calls, 200, 15),
    "tables": (doors.bad_tables, 500, 20),
    "calls with tables": (doors.tabled_calls, 150, 6),
    "gradients": (doors.gradients, 80, 4),
    "kills": (programs.kills, 100, 5),
    "legal kernels": (programs.legal_kernels, 12, 1),
}
GOOD = {
    "cache entries": "read, all right",
    "bundles": "read, all right",
    "import lines": "taken, kept, sent on and shown",
    "crafted stores": "read",
    "PTX texts": "ran",
    "command lines": "ended with exit code 0",
    "calls": "answered",
    "tables": "refused in words",
    "calls with tables": "tables that lie, all answers right",
    "gradients": "of one number for all, all right",
    "kills": "rows acknowledged, none lost",
    "legal kernels": "right",
}


def say(text):
    """A line for who watches, at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> int:
    """Runs every target; 1 where one failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 2**32)
    parser.add_argument("--only", choices=TARGETS)
    parser.add_argument("--times", type=int, default=1, help="as many times the usual numbers")
    given = parser.parse_args()
    logging.disable(logging.WARNING)  # a damaged entry is said, thousands of times here
    say(f"seed {given.seed} (again: python tests/fuzz/run.py --seed {given.seed})")
    failed = 0
    for name, (target, count, _) in TARGETS.items():
        if given.only in (None, name):
            failed += not run(name, target, count * given.times, given.seed)
    return 1 if failed else 0


def run(name, target, count, seed):
    """Runs one target and says how it ended."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="flashsmith-fuzz-") as folder:
        try:
            good = target(random.Random(f"{seed} {name}"), count, Path(folder))
        except Exception:  # noqa: BLE001 - whatever it is, it is what a fuzz looks for
            traceback.print_exc()
            say(f"FAILED  {name} (seed {seed})")
            return False
    say(f"ok  {count:5} {name}: {good} {GOOD[name]}; {time.monotonic() - began:.0f} s")
    return True


if __name__ == "__main__":
    sys.exit(main())
