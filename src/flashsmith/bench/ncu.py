"""Nsight Compute as a program: where it is, how it is called, and what its refusals mean."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from flashsmith.base import settings
from flashsmith.base.errors import LaunchError, OutOfTime, Unsupported

DURATION = "gpu__time_duration.sum"
# A column of ours, and the counter that it is; the first four exist on every GPU.
METRICS = {
    "duration_us": DURATION,
    "cycles": "sm__cycles_elapsed.max",
    "registers": "launch__registers_per_thread",
    "l2_hit_pct": "lts__t_sector_hit_rate.pct",
    "tensor_pct": "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
    "warps_pct": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "instructions": "sm__inst_executed.sum",
    "bank_conflicts": "l1tex__data_bank_conflicts_pipe_lsu.sum",
    "dram_bytes": "dram__bytes_read.sum",
}
ALL = tuple(METRICS.values())
ESSENTIAL = ALL[:4]
# The name without its template arguments; `.*` because older versions match the whole of it.
KERNELS = "regex:.*(flashsmith_|flash_fwd).*"
_USUAL_PATHS = ("/usr/local/cuda/bin/ncu", "/opt/nvidia/nsight-compute")
_LOOK_SECONDS = 0.5  # between two looks at what it has done
_LAST_SECONDS = 5.0  # it may take to end when it is asked to
_NOTHING = "No kernels were profiled"
_UNKNOWN_METRIC = re.compile(r"(?i)failed to find metric|unknown metric|invalid metric")


def find_ncu() -> str:
    """The path of `ncu`; raises with what to install where there is none."""
    found = shutil.which("ncu")
    if found is not None:
        return found
    usual = Path(_USUAL_PATHS[0])
    versions = [usual] if usual.is_file() else sorted(Path(_USUAL_PATHS[1]).glob("*/ncu"))
    if versions:
        return str(versions[-1])
    raise Unsupported(
        "profile reads the GPU's counters with Nsight Compute, and no `ncu` is on the PATH or in "
        f"{' or '.join(_USUAL_PATHS)}; install the package nsight-compute or the CUDA toolkit, or "
        "add its folder to the PATH. Times without counters: `flashsmith run` and `progression`."
    )


def ncu_command(
    ncu: str, child: Sequence[str], log: Path, metrics: Sequence[str] = ALL
) -> list[str]:
    """The command line that profiles `child` and writes its table into `log`.

    Clocks are left as they are in use, caches are flushed before each kernel (the default).
    """
    return [
        *(ncu, "--csv", "--page", "raw", "--print-units", "base", "--clock-control", "none"),
        *("--target-processes", "all", "--kernel-name", KERNELS),
        *("--metrics", ",".join(metrics), "--log-file", str(log), *child),
    ]


def run_ncu(
    child: Sequence[str],
    folder: Path,
    *,
    seconds: float,
    look: Callable[[], None] = lambda: None,
) -> str:
    """Runs `child` under Nsight Compute; the text of its log, which holds the table.

    `look` is called from time to time while it runs.
    """
    ncu = find_ncu()
    log = folder / "ncu.csv"
    for asked in (ALL, ESSENTIAL):
        log.unlink(missing_ok=True)
        code, out = _run(ncu_command(ncu, child, log, asked), seconds, look)
        text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
        said = f"{text}\n{out}"
        if code == 0 and ('"ID",' in text or (_NOTHING in said and not _is_forbidden(said))):
            return text
        if not _UNKNOWN_METRIC.search(said):
            break
    raise refusal_of(said, code)


def _run(command: list[str], seconds: float, look: Callable[[], None]) -> tuple[int, str]:
    """The exit code and what was said; nothing of it is left running, whatever happens here."""
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=settings.child_environment({}),
        start_new_session=True,  # it ends together with the program that it watches
    )
    end = time.monotonic() + seconds
    try:
        while time.monotonic() < end:
            try:
                said, _ = process.communicate(timeout=_LOOK_SECONDS)
            except subprocess.TimeoutExpired:
                look()
                continue
            return process.returncode, said
    finally:
        _end(process)
    raise OutOfTime(
        "ncu", f"nothing after {seconds:g} s", "profile fewer kernels or lengths at a time"
    )


def _end(process: subprocess.Popen[str]) -> None:
    """Ends it and all that it started: asked first, then without asking."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_LAST_SECONDS)
        with suppress(ProcessLookupError):  # all have ended
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if process.stdout is not None:
        process.stdout.close()


def _is_forbidden(said: str) -> bool:
    return "ERR_NVGPUCTRPERM" in said


def refusal_of(said: str, code: int) -> Unsupported | LaunchError:
    """The error that explains why Nsight Compute gave no table."""
    if _is_forbidden(said):
        return Unsupported(
            "The driver lets only administrators read the GPU's counters (ERR_NVGPUCTRPERM). Run "
            "as root, start the container with --cap-add=SYS_ADMIN, or let everyone: put `options "
            "nvidia NVreg_RestrictProfilingToAdminUsers=0` into /etc/modprobe.d/nvidia.conf and "
            "load the driver again."
        )
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line for line in lines if "==ERROR==" in line or "Error" in line] or lines
    last = errors[-1] if errors else "without a word"
    return LaunchError("ncu", f"exit code {code}", f"it said: {last[:300]}")
