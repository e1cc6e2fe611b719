"""Checks every configuration on the GPU at hand and writes what it found as records.

    PYTHONPATH=src python3 benchmarks/check_h200.py OUT [--keys …] [--parts …]

Parts: `cases` (the sets of --keys on 12 cases; with prog-all also the ladders rebased to d_head 64
and 256 on their own d), `agree` (the first set on the emulator and on the GPU, in ulps), `sanitize`
(compute-sanitizer on the smoke set), `host` (time of a warm launch on the host).
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import asdict, replace
from functools import cache
from multiprocessing import get_context
from pathlib import Path

from device_agreement import output_of, ulps_apart

from flashsmith.base.errors import FlashsmithError
from flashsmith.check.cases import full_cases, quick_cases
from flashsmith.check.survey import check_one, compile_jobs
from flashsmith.check.tolerance import expectation_of
from flashsmith.compile.compiler import compile_many
from flashsmith.kernels import resolve_key
from flashsmith.measure.environment import environment_of
from flashsmith.measure.record import Record, append_records
from flashsmith.measure.timed_configs import random_inputs
from flashsmith.problem.attention import AttentionProblem
from flashsmith.runtime.devices import default_device, open_device
from flashsmith.runtime.run import prepare
from flashsmith.runtime.tensors import contiguous_tensors, uploaded

LADDER_D_HEADS = (64, 256)
SANITIZERS = {"memcheck": (), "racecheck": ("--racecheck-report", "all")}


def configs_and_cases(keys):
    """What is checked: configurations with their cases, duplicates once."""
    work = {config: full_cases(config) for key in keys for config in resolve_key(key)}
    for d_head in LADDER_D_HEADS if "prog-all" in keys else ():
        for ladder in resolve_key("prog-all"):
            config = replace(ladder, d_head=d_head)
            cases = full_cases(config)
            work[config] = tuple(case for case in cases if case.problem.d_head == d_head)
    return work


def check_cases(device, environment, out, keys):
    """Every configuration on its cases; one record a configuration."""
    work = configs_and_cases(keys)
    pairs = [(config, case) for config, cases in work.items() for case in cases]
    buildable = [pair for pair in pairs if pair[0].refusal() is None]
    begin = time.perf_counter()
    with ThreadPoolExecutor(4) as pool:  # the truths, beside the compiles
        truths = pool.map(expectation_of, dict.fromkeys(case for _, case in buildable))
        jobs = compile_jobs(device, buildable)
        with ProcessPoolExecutor(16, get_context("spawn")) as compilers:
            errors = [text for text in compilers.map(_compile_error, jobs, chunksize=8) if text]
        list(truths)
    compiled = time.perf_counter()
    print(f"{len(jobs)} kernels in {compiled - begin:.1f} s")
    counts = Counter()
    records = []

    def check(config):
        return [check_one(device, config, case) for case in work[config]]

    with ThreadPoolExecutor(8) as pool:  # most of the time goes into comparing, on the host
        for config, rows in zip(work, pool.map(check, work), strict=True):
            records.append(_record(config, rows, environment))
            counts[records[-1].result["result"]] += 1
    append_records(out / "verify.jsonl", records)
    print(f"{len(pairs)} checks in {time.perf_counter() - compiled:.1f} s: {dict(counts)}")
    for record in records:
        if record.result["result"] == "wrong":
            print("WRONG", record.what["config"], record.result["reason"])
    for error in errors[:5]:
        print("COMPILE", error)


def _compile_error(job):
    """Compiles into the cache; processes, because threads share NVRTC's locks."""
    (kernel,) = compile_many([job], workers=1)
    return str(kernel) if isinstance(kernel, FlashsmithError) else ""


def _record(config, rows, environment):
    wrong = next((row for row in rows if row.wrong), None)
    refused = next((row for row in rows if row.refusal), None)
    verdicts = [row.verdict for row in rows if row.verdict is not None and row.verdict.ok]
    result = "wrong" if wrong else "cannot run" if refused else "right"
    reason = ""
    if wrong:
        reason = f"{wrong.case}: {wrong.verdict.reason} {wrong.verdict.where}"
    elif refused:
        reason = refused.refusal
    return Record(
        what={"suite": "verify", "config": config.short_form(), "cases": len(rows)},
        result={
            "result": result,
            "right": len(verdicts),
            "worst_of_allowed": max((v.worst / v.allowed for v in verdicts), default=None),
            "reason": reason,
        },
        environment=asdict(environment),
    )


@cache
def _emulator():
    return open_device("emulator")


def _emulated_output(config, case):
    try:
        return output_of(_emulator(), config, case)
    except FlashsmithError as error:
        return error


def check_agreement(device, environment, out, keys):
    """The first set on both devices: the largest distance of each configuration."""
    pairs = [(config, case) for config in resolve_key(keys[0]) for case in quick_cases(config)]
    records = []
    with ProcessPoolExecutor(14, get_context("spawn")) as pool:
        emulated = list(pool.map(_emulated_output, *zip(*pairs, strict=True)))
    for (config, case), expected in zip(pairs, emulated, strict=True):
        what = {"suite": "agreement", "config": config.short_form(), "case": case.name}
        if isinstance(expected, FlashsmithError):
            result = {"ulps": None, "reason": str(expected)}
        else:
            got = output_of(device, config, case)
            result = {
                "ulps": ulps_apart(got, expected, config.dtype),
                "equal_bits": float((got == expected).mean()),
            }
        records.append(Record(what=what, result=result, environment=asdict(environment)))
    append_records(out / "agreement.jsonl", records)
    known = [record.result["ulps"] for record in records if record.result["ulps"] is not None]
    print(f"agreement: {len(known)} of {len(records)} compared, worst {max(known, default=None)}")


def check_sanitizers(device, environment, out, keys):
    """compute-sanitizer over the smoke set, in processes of its own."""
    records = []
    for tool, options in SANITIZERS.items():
        command = ["compute-sanitizer", "--tool", tool, *options, "--error-exitcode", "9"]
        command += [sys.executable, "-m", "flashsmith", "verify", "smoke", "--device", "cuda"]
        begin = time.perf_counter()
        done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
        text = done.stdout + done.stderr
        (out / f"{tool}.txt").write_text(text)
        summary = [line for line in text.splitlines() if "SUMMARY" in line]
        print(tool, done.returncode, summary, f"{time.perf_counter() - begin:.1f} s")
        records.append(
            Record(
                what={"suite": "sanitizer", "tool": tool, "set": "smoke"},
                result={"exit_code": done.returncode, "summary": " ".join(summary)},
                environment=asdict(environment),
            )
        )
    append_records(out / "sanitizer.jsonl", records)


def time_host(device, environment, out, keys):
    """Microseconds the host spends on a warm launch."""
    config = resolve_key("smoke")[0]
    problem = AttentionProblem(1, 3, 3, 64, 64, config.d_head, config.dtype)
    places, buffers = contiguous_tensors(problem, random_inputs(problem))
    with uploaded(device, buffers) as held:
        call, prepared = held.call(places), prepare(device, config, problem)
        samples = []
        for _ in range(20):
            device.synchronize()
            begin = time.perf_counter()
            for _ in range(100):
                prepared(call)
            samples.append((time.perf_counter() - begin) * 1e4)
        device.synchronize()
    result = {"median_us": sorted(samples)[10], "p20_us": sorted(samples)[4]}
    print("host time of a warm launch", result)
    record = Record(
        what={"suite": "host launch", "config": config.short_form()},
        result=result,
        environment=asdict(environment),
    )
    append_records(out / "host_launch.jsonl", [record])


PARTS = {
    "host": time_host,
    "cases": check_cases,
    "agree": check_agreement,
    "sanitize": check_sanitizers,
}


def main():
    """Runs the parts that were asked for; one that fails does not stop the others."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--keys", default="tune,prog-all")
    parser.add_argument("--parts", default=",".join(PARTS))
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    device = default_device("cuda")
    kernel = compile_many(compile_jobs(device, [_first_work()]))[0]
    compiler = getattr(kernel, "compiler", str(kernel))
    environment = environment_of(device, compiler=compiler)
    for name in given.parts.split(","):
        begin = time.perf_counter()
        try:
            PARTS[name](device, environment, given.out, given.keys.split(","))
        except Exception as error:  # noqa: BLE001 – the other parts are worth their time
            print(f"{name}: {type(error).__name__}: {error}")
        print(f"{name}: {time.perf_counter() - begin:.1f} s", flush=True)


def _first_work():
    config = resolve_key("smoke")[0]
    return config, quick_cases(config)[0]


if __name__ == "__main__":
    main()
