"""Runs every mutant of the test kernels and writes the table of docs/notebook/emulator.md.

    python benchmarks/emulator_mutants.py [--processes 2] [--most 5] [--table-only]

The record (one JSON line a kind and kernel) is benchmarks/results/emulator/mutants.jsonl; the table
is made from it alone.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RECORD = ROOT / "benchmarks" / "results" / "emulator" / "mutants.jsonl"
PAGE = ROOT / "docs" / "notebook" / "emulator.md"
BEGIN, END = "<!-- mutants: begin -->\n", "<!-- mutants: end -->"
sys.path.insert(0, str(ROOT / "tests" / "emulator"))

import hopper_kernels  # noqa: E402 - the tests' folder is not a package
import mutation  # noqa: E402
import test_hopper_mutants as hopper  # noqa: E402
import test_mma_mutants as mma  # noqa: E402

EQUIVALENT = {**mma.EQUIVALENT, **hopper.EQUIVALENT}


def kernels() -> dict[str, tuple[object, list[mutation.Mutant]]]:
    """Every kernel with its mutants, by the name the table shows."""
    attention, cluster = hopper_kernels.AttentionLike(), hopper_kernels.ClusterPair()
    found: dict[str, tuple[object, list[mutation.Mutant]]] = {
        f"mma {kernel.name}": (kernel, mma.all_mutants(kernel)) for kernel in mma.KERNELS
    }
    found["TMA + wgmma"] = (attention, hopper.attention_mutants())
    found["cluster"] = (cluster, hopper.cluster_mutants())
    return found


def _judge(name: str, number: int, most: int) -> tuple[str, str, str]:
    kernel, found = kernels()[name]
    mutant = mutation.thinned(found, most=most, once=EQUIVALENT)[number]
    is_right = getattr(kernel, "is_right", bool)
    verdict = mutation.judge(mutant.ptx, kernel.run, is_right)
    return name, mutant.kind, verdict.how if verdict.noticed else "not noticed"


def run(processes: int, most: int) -> list[dict[str, object]]:
    """A record for each kind and kernel."""
    work = [
        (name, number, most)
        for name, (_, found) in kernels().items()
        for number in range(len(mutation.thinned(found, most=most, once=EQUIVALENT)))
    ]
    counts: dict[tuple[str, str], Counter[str]] = {}
    with ProcessPoolExecutor(processes) as pool:
        for name, kind, how in pool.map(_judge, *zip(*work, strict=True), chunksize=8):
            counts.setdefault((kind, name), Counter())[how] += 1
    today = datetime.date.today().isoformat()
    return [
        {"kind": kind, "kernel": name, "noticed": dict(sorted(found.items())), "date": today}
        for (kind, name), found in counts.items()
    ]


def table(records: list[dict[str, object]]) -> str:
    """The table of the page: a row a kind, in the order of the records."""
    rows: dict[str, dict[str, Counter[str]]] = {}
    for record in records:
        kernels_of = rows.setdefault(str(record["kind"]), {})
        kernels_of[str(record["kernel"])] = Counter(record["noticed"])  # type: ignore[arg-type]
    lines = ["| kind of change | kernels | mutants | noticed as |", "|---|---|---|---|"]
    for kind, by_kernel in rows.items():
        total = sum(by_kernel.values(), Counter())
        how = ", ".join(f"{name} ({count})" for name, count in total.most_common())
        if kind in EQUIVALENT:
            how = f"equivalent: {EQUIVALENT[kind]}"
        lines.append(f"| {kind} | {', '.join(by_kernel)} | {total.total()} | {how} |")
    return "\n".join(lines) + "\n"


def read_record() -> list[dict[str, object]]:
    """The committed record."""
    return [json.loads(line) for line in RECORD.read_text(encoding="utf-8").splitlines()]


def page_table() -> str:
    """The table that stands in the page."""
    return PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--most", type=int, default=5, help="mutants of a kind and kernel")
    parser.add_argument("--table-only", action="store_true", help="from the record as it is")
    options = parser.parse_args()
    if not options.table_only:
        records = run(options.processes, options.most)
        RECORD.parent.mkdir(parents=True, exist_ok=True)
        lines = [json.dumps(record) for record in records]
        RECORD.write_text("\n".join(lines) + "\n", encoding="utf-8")
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    PAGE.write_text(
        before + BEGIN + table(read_record()) + END + rest.partition(END)[2], encoding="utf-8"
    )
    missed = [
        r for r in read_record() if "not noticed" in r["noticed"] and r["kind"] not in EQUIVALENT
    ]
    print(f"{len(read_record())} kinds and kernels, {len(missed)} missed {missed}")


if __name__ == "__main__":
    main()
