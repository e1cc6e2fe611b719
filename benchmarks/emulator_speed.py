"""How fast the emulator is: one shape with checks off and on, translation, memory.

    python benchmarks/emulator_speed.py [--record]

Times are of one process, the best of several runs; CPU seconds say what the wall would be on an
idle core. The goals are those of docs/emulator.md.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import resource
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from flashsmith.compile.compiler import compile_kernel
from flashsmith.emulator.machine.translate import translate
from flashsmith.emulator.options import EmulatorOptions
from flashsmith.emulator.ptx.parse import parse_kernel
from flashsmith.kernels.parse import parse_config
from flashsmith.kernels.plans import needs_of
from flashsmith.problem.attention import AttentionProblem
from flashsmith.runtime.emulated import EmulatedDevice
from flashsmith.runtime.run import run_arrays

CONFIGS = {
    "B_r 64": "(FP16, 128, 64, 64, 4): async+eager+swizzled+load_2_2_2_tiles+buffer+opt_softmax",
    "B_r 128": "(FP16, 128, 128, 64, 4): async+eager+swizzled+load_2_2_2_tiles+opt_softmax",
}
GOALS = {"checks off": 0.3, "checks on": 0.5}
RUNS = 7
ROOT = Path(__file__).resolve().parents[1]
RECORD = ROOT / "benchmarks" / "results" / "emulator" / "speed.jsonl"
PAGE = ROOT / "docs" / "notebook" / "emulator.md"
BEGIN, END = "<!-- speed: begin -->\n", "<!-- speed: end -->"


def best(work: Callable[[], object]) -> tuple[float, float]:
    """Least wall and CPU seconds of several runs."""
    walls, cpus = [], []
    for _ in range(RUNS):
        wall, cpu = time.perf_counter(), time.process_time()
        work()
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
    return min(walls), min(cpus)


def measure(name: str, causal: bool) -> list[dict[str, object]]:
    """Records of one configuration: 4 heads, 512 rows and keys, d 128."""
    config = parse_config(CONFIGS[name])
    problem = AttentionProblem(1, 4, 4, 512, 512, 128, dtype=config.dtype, causal=causal)
    random = np.random.default_rng(0)
    arrays = {
        name: random.standard_normal((1, 512, 4, 128)).astype(np.float16).view(np.uint16)
        for name in ("q", "k", "v")
    }
    shape = f"4 heads, 512 x 512, d 128{', causal' if causal else ''}"
    kernel = compile_kernel(config, needs_of(config, problem), "sm_90a")
    wall, cpu = best(lambda: translate(parse_kernel(kernel.ptx)))
    instructions = len(parse_kernel(kernel.ptx).instructions)
    records = [{"what": "translate", "instructions": instructions, "wall_s": wall, "cpu_s": cpu}]
    for what, options in (
        ("checks off", EmulatorOptions(checks=False, processes=1)),
        ("checks on", EmulatorOptions(processes=1)),
        ("counters", EmulatorOptions(counters=True, processes=1)),
        ("random schedule", EmulatorOptions(seed=0, processes=1)),
    ):
        device = EmulatedDevice(options=options)
        wall, cpu = best(lambda device=device: run_arrays(device, config, problem, arrays))
        report = device.report()
        records.append(
            {"what": what, "wall_s": wall, "cpu_s": cpu, "goal_s": GOALS.get(what),
             "blocks": report.blocks, "warp_instructions": report.warp_instructions}
        )  # fmt: skip
    return [{"config": CONFIGS[name], "shape": shape, **record} for record in records]


def newest_records() -> list[dict[str, object]]:
    """The last measurement of each configuration, shape and option."""
    found: dict[tuple[object, ...], dict[str, object]] = {}
    for line in RECORD.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        found[record["config"], record["shape"], record["what"]] = record
    return list(found.values())


def table(records: list[dict[str, object]]) -> str:
    """The table of the page: CPU seconds, which other work on the machine changes least."""
    lines = ["| shape | kernel | what | CPU s | goal s |", "|---|---|---|---|---|"]
    for record in records:
        goal = record.get("goal_s") or ""
        kernel = f"{str(record['config']).partition(':')[0]}"
        lines.append(
            f"| {record['shape']} | `{kernel}` | {record['what']} | {record['cpu_s']} | {goal} |"
        )
    first = records[0]
    lines.append("")
    lines.append(f"{first['date']}, {first['machine']}, Python {first['python']}, "
                 f"numpy {first['numpy']}; peak memory {first['peak_mb']} MB.")  # fmt: skip
    return "\n".join(lines) + "\n"


def page_table() -> str:
    """The table that stands in the page."""
    return PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]


def write_page() -> None:
    """Puts the table of the newest records into the page."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(before + BEGIN + table(newest_records()) + END + after, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--record", action="store_true", help="append to the record, write the page"
    )
    keep = parser.parse_args().record
    where = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "python": platform.python_version(),
        "numpy": np.__version__,
        "date": datetime.date.today().isoformat(),
        "load": round(os.getloadavg()[0], 1),
    }
    records = [r for name in CONFIGS for causal in (False, True) for r in measure(name, causal)]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    for record in records:
        for key in ("wall_s", "cpu_s"):
            record[key] = round(float(str(record[key])), 3)
        print(f"{record['config']!s:.25} {record['shape']:35} {record['what']:16} "
              f"wall {record['wall_s']} s, CPU {record['cpu_s']} s")  # fmt: skip
    print(f"peak memory {peak} MB")
    if keep:
        RECORD.parent.mkdir(parents=True, exist_ok=True)
        with RECORD.open("a", encoding="utf-8") as file:
            for record in records:
                file.write(json.dumps({**record, "peak_mb": peak, **where}) + "\n")
        write_page()


if __name__ == "__main__":
    main()
