"""The Hopper kernels on an H200 as `choose` picks them, beside cuDNN and a prototype.

    PYTHONPATH=src python3 benchmarks/hopper_h200.py OUT_FOLDER [--prototype FOLDER]
        [--parts burst,sustained,…] [--seconds N]

Appends records to OUT_FOLDER/hopper.jsonl (candidates in FP16 to hopper_fp16.jsonl, clocks to
hopper_clocks.jsonl) and ends with every bar and whether the record meets it; `--parts summary` does
that alone. Timing is that of measure/interleaved.py: graphs, a cold L2, balanced orders, our kernel
twice as the control, a void cell again. FOLDER holds `yardstick.py` and `cubins/` of the prototype.
The exit code is 1 when a part failed or a bar is missed.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import hopper_bars as bars

from flashsmith.base.errors import FlashsmithError
from flashsmith.compile.compiler import CompileJob, compile_many
from flashsmith.measure.record import Record, append_records

PARTS = (
    *("burst", "checks", "shapes", "clocks", "ladder", "counters", "sanitize", "knobs"),
    "sustained",  # the longest
)
RECORD = "hopper.jsonl"
FILES = {"fp16": "hopper_fp16.jsonl", "clocks": "hopper_clocks.jsonl"}  # beside the record
RESUMED = ("burst", "sustained")  # a second process goes on with the cells that are missing


def run_part(part: str, out: Path, prototype: Path | None) -> None:
    """One part, in this process; every line is written as soon as it is known."""
    import hopper_checks as checks
    import hopper_clocks as clocks
    import hopper_knobs as knobs
    import hopper_parts as parts
    import hopper_variations as variations
    from hopper_prototype import Prototype
    from hopper_shapes import device

    from flashsmith.compile.nvrtc_library import find_nvrtc
    from flashsmith.measure.environment import environment_of

    path = out / FILES.get(part, RECORD)
    environment = environment_of(device(), compiler=find_nvrtc().compiler)
    done = frozenset(
        (regime, cell) for regime in RESUMED for cell in bars.grid(bars.read(path), regime)
    )
    loaded = Prototype(prototype) if prototype and part in RESUMED else None
    setting = parts.Setting(environment, loaded, done)
    made: dict[str, Callable[[], Iterator[Record]]] = {
        "burst": lambda: parts.cells(setting, "burst"),
        "sustained": lambda: parts.cells(setting, "sustained"),
        "checks": lambda: checks.checks(setting),
        "sanitize": lambda: checks.sanitized(setting),
        "shapes": lambda: variations.shapes(setting),
        "ladder": lambda: parts.ladder(setting),
        "counters": lambda: parts.counters(setting),
        "knobs": lambda: knobs.knobs(setting),
        "clocks": lambda: clocks.clocks(setting),
        "fp16": lambda: variations.fp16(setting),
    }
    for record in made[part]():
        append_records(path, [record])
        print(told(part, record), flush=True)


def told(part: str, record: Record) -> str:
    """A line of the log."""
    what, result = record.what, record.result
    who = next((what[n] for n in ("name", "case", "check", "tool") if n in what), "")
    mask = {True: "causal", False: "full", None: ""}[what.get("causal")]
    length = what.get("q_len", what.get("length", ""))
    names = ("tflops", "ratio", "share", "control", "cycles", "tensor_pct", "of_cudnn", "ok")
    names += ("sm_mhz", "power_w", "joules")
    numbers = [f"{n} {_short(result[n])}" for n in names if result.get(n) is not None]
    numbers += [f"{n} {result[n]}" for n in ("attempts", "errors", "summary") if result.get(n)]
    more = what.get("variant", what.get("config", ""))
    place = f"{part:9s} d{what.get('d_head', ''):<3} {mask:6s} {length:>5}"
    return f"{place} {who}: {' '.join(numbers)} {more}"


def _short(value: object) -> str:
    return f"{value:.4f}" if isinstance(value, float) else f"{value}"


def compile_all(wanted: list[str]) -> None:
    """Fills the cache on all cores, before anything is timed."""
    from hopper_checks import memory_checked
    from hopper_knobs import knob_problems
    from hopper_shapes import jobs_of, usual_jobs
    from hopper_variations import fp16_problems

    more: dict[str, Callable[[], list[CompileJob]]] = {
        "sanitize": memory_checked,
        "knobs": lambda: jobs_of(knob_problems()),
        "fp16": lambda: jobs_of(fp16_problems()),
    }
    extra = [job for part, jobs in more.items() if part in wanted for job in jobs()]
    wanted = list(dict.fromkeys([*usual_jobs(), *extra]))
    for kernel in compile_many(wanted):
        if isinstance(kernel, FlashsmithError):
            print(kernel, flush=True)


def run_apart(work: Callable[[], None], seconds: float) -> int | str:
    """Runs in a process of its own, which a fault of the GPU ends alone; how it ended.

    It is forked, so that torch is loaded once; nothing here may have called CUDA before.
    """
    process = get_context("fork").Process(target=work)
    process.start()
    process.join(max(seconds, 1.0))
    if process.is_alive():
        process.terminate()
        process.join()
        return "cut off"
    return process.exitcode or 0


def run_all(wanted: list[str], work: Callable[[str], None], seconds: float) -> list[str]:
    """Each part apart, until the time is up; what failed, and how."""
    failed = []
    end = time.monotonic() + seconds
    for part in wanted:
        begin = time.monotonic()
        ended: int | str = 0
        for _ in range(2 if part in RESUMED else 1):
            ended = run_apart(partial(work, part), end - time.monotonic())
            if ended == 0 or ended == "cut off":
                break
        print(f"{part}: {time.monotonic() - begin:.1f} s, ended with {ended}", flush=True)
        if ended != 0:
            failed.append(f"{part}: {ended}")
    return failed


def main() -> int:
    """Compiles, runs the parts, and says which bars hold."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--prototype", type=Path)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--seconds", type=float, default=400.0, help="for all parts together")
    asked = parser.parse_args()
    wanted = asked.parts.split(",")
    unknown = set(wanted) - {*PARTS, "fp16", "summary"}
    if unknown:
        parser.error(f"--parts has {', '.join(sorted(unknown))}; it takes {PARTS}, fp16, summary")
    asked.out.mkdir(parents=True, exist_ok=True)
    timed = [part for part in wanted if part != "summary"]

    def work(part: str) -> None:
        if part == "compile":
            compile_all(timed)
        else:
            run_part(part, asked.out, asked.prototype)

    if timed:
        import hopper_variations  # noqa: F401  (with it torch, before the parts are forked)
    failed = run_all(["compile", *timed] if timed else [], work, asked.seconds)
    holds = bars.show(bars.read(asked.out / RECORD), print)
    for text in failed:
        print("FAILED", text)
    return 0 if holds and not failed else 1


if __name__ == "__main__":
    sys.exit(main())
