"""Compiles sets for every architecture, cold, and records figures, reasons and times.

Run it on an otherwise idle machine; no GPU is needed:

    python benchmarks/compile_record.py --out benchmarks/results/compile
"""

from __future__ import annotations

import argparse
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

from flashsmith import __version__
from flashsmith.arch import ARCHES
from flashsmith.compile.cache.kernel_cache import KernelCache
from flashsmith.compile.compiler import available_cores, compile_kernel
from flashsmith.compile.nvrtc.library import find_nvrtc
from flashsmith.compile.survey import SurveyRow, survey
from flashsmith.kernels import KernelConfig, resolve_key
from flashsmith.measure.environment import commit_of_checkout
from flashsmith.measure.record import Record
from flashsmith.problem.needs import Needs

PLAIN = Needs()
WARM_LOOKUPS = 200
ALONE = 40  # kernels compiled one at a time

# A look-up as the first thing a process does; prints its milliseconds and whether NVRTC came in.
FIRST_LOOKUP = """
import sys, time
from pathlib import Path
from flashsmith.compile.compiler import compile_kernel
from flashsmith.compile.cache.kernel_cache import KernelCache
from flashsmith.kernels import parse_config
from flashsmith.problem.needs import Needs
config, cache = parse_config(sys.argv[1]), KernelCache(Path(sys.argv[2]), 1 << 40)
start = time.perf_counter()
compile_kernel(config, Needs(), sys.argv[3], cache=cache)
print(1e3 * (time.perf_counter() - start), "libnvrtc" in Path("/proc/self/maps").read_text())
"""


def main() -> int:
    arguments = _arguments()
    configs = list(dict.fromkeys(config for key in arguments.keys for config in resolve_key(key)))
    with tempfile.TemporaryDirectory() as folder:
        cache = KernelCache(Path(folder), 1 << 40)
        rows = survey(configs, PLAIN, ARCHES, cache=cache)
        summary = _summary(rows) | _warm(rows, cache)
    with tempfile.TemporaryDirectory() as folder:
        summary |= _alone(rows, KernelCache(Path(folder), 1 << 40))
    environment = _environment()
    records = [_record(row, environment) for row in rows]
    what = {"suite": "compile", "name": "summary", "sets": " ".join(arguments.keys)}
    records.append(Record(what=what, result=summary, environment=environment))
    version = find_nvrtc().version.replace(" ", "-")
    place = arguments.out / f"nvrtc-{version}.jsonl"
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text("".join(record.to_line() + "\n" for record in records), encoding="utf-8")
    print(f"{place}: {len(rows)} rows")
    for name, value in summary.items():
        print(f"{name:32} {value}")
    return 1 if summary["failed"] else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("keys", nargs="*", default=["tune", "prog-all"], help="sets to compile")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/compile"))
    return parser.parse_args()


def _record(row: SurveyRow, environment: dict[str, object]) -> Record:
    flat = row.as_flat()
    what = {"suite": "compile", "name": flat.pop("config"), "arch": flat.pop("arch")}
    return Record(what=what, result=flat, environment=environment)


def _summary(rows: list[SurveyRow]) -> dict[str, object]:
    made = [row for row in rows if row.kernel is not None]
    seconds = [row.kernel.compile_seconds for row in made]
    summary: dict[str, object] = {
        "rows": len(rows),
        "compiled": len(made),
        "not_fitting": sum(row.kernel is None and not row.failed for row in rows),
        "failed": sum(row.failed for row in rows),
        "aliases": sum(row.same_as is not None for row in rows),
        "cold_compile_s_median": round(statistics.median(seconds), 3),
        "cold_compile_s_max": round(max(seconds), 3),
    }
    for arch in ARCHES:
        here = [row for row in made if row.arch == arch]
        few_rows = [row for row in here if _rows_per_warp(row.config) == 16]
        many_rows = [row for row in here if _rows_per_warp(row.config) == 32]
        summary[f"largest_spill_16_rows_a_warp_{arch.name}"] = _largest_spill(few_rows)
        summary[f"largest_spill_32_rows_a_warp_{arch.name}"] = _largest_spill(many_rows)
    return summary


def _largest_spill(rows: list[SurveyRow]) -> int:
    return max((row.kernel.resources.spill_bytes for row in rows), default=0)


def _rows_per_warp(config: KernelConfig) -> int:
    return config.tile_q * 32 // config.threads


def _warm(rows: list[SurveyRow], cache: KernelCache) -> dict[str, object]:
    """Times of look-ups that find their kernel: in this process, and as the first of one."""
    made = [row for row in rows if row.kernel is not None]
    times = []
    for i in range(WARM_LOOKUPS):
        row = made[i * 7919 % len(made)]  # all over the set, not one entry again and again
        start = time.perf_counter()
        compile_kernel(row.config, PLAIN, row.arch.name, cache=cache)
        times.append(1e3 * (time.perf_counter() - start))
    command = [sys.executable, "-c", FIRST_LOOKUP, made[0].config.short_form()]
    command += [str(cache.root), made[0].arch.name]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return {
        "warm_lookup_ms_median": round(statistics.median(times), 3),
        "warm_lookup_ms_max": round(max(times), 3),
        "first_lookup_of_a_process_ms": round(float(said[0]), 3),
        "warm_lookup_loads_nvrtc": said[1] == "True",
    }


def _alone(rows: list[SurveyRow], cache: KernelCache) -> dict[str, object]:
    """Processor and wall time of compiles one at a time: what a busy machine adds is seen."""
    made = [row for row in rows if row.kernel is not None]
    processor, wall = [], []
    for row in made[:: max(len(made) // ALONE, 1)]:
        before = time.process_time(), time.perf_counter()
        compile_kernel(row.config, PLAIN, row.arch.name, cache=cache)
        processor.append(time.process_time() - before[0])
        wall.append(time.perf_counter() - before[1])
    return {
        "alone_compile_processor_s_median": round(statistics.median(processor), 3),
        "alone_compile_s_median": round(statistics.median(wall), 3),
    }


def _environment() -> dict[str, object]:
    commit, dirty = commit_of_checkout()
    return {
        "compiler": find_nvrtc().compiler,
        "cores": available_cores(),
        "python": platform.python_version(),
        "flashsmith": __version__,
        "commit": commit,
        "dirty": dirty,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


if __name__ == "__main__":
    sys.exit(main())
