"""Nsight Compute as a program: where it is, how it is called, and what its refusals mean."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from flashsmith.base import settings
from flashsmith.base.errors import DeviceMissing, LaunchError, Unsupported

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
ESSENTIAL = tuple(list(METRICS.values())[:4])
# The name without its template arguments; `.*` because older versions match the whole of it.
KERNELS = "regex:.*(flashsmith_|flash_fwd).*"
_PLACES = ("/usr/local/cuda/bin/ncu", "/opt/nvidia/nsight-compute")
_UNKNOWN_METRIC = re.compile(r"(?i)failed to find metric|unknown metric|invalid metric")


def find_ncu() -> str:
    """The path of `ncu`; raises with what to install where there is none."""
    found = shutil.which("ncu")
    if found is not None:
        return found
    usual = Path(_PLACES[0])
    versions = [usual] if usual.is_file() else sorted(Path(_PLACES[1]).glob("*/ncu"))
    if versions:
        return str(versions[-1])
    raise Unsupported(
        "profile reads the GPU's counters with Nsight Compute, and no `ncu` is on the PATH or in "
        f"{' or '.join(_PLACES)}; install the package nsight-compute or the CUDA toolkit, or add "
        "its folder to the PATH. Times without counters: `flashsmith run` and `progression`."
    )


def ncu_command(
    ncu: str, child: Sequence[str], log: Path, metrics: Sequence[str] = tuple(METRICS.values())
) -> list[str]:
    """The command line that profiles `child` and writes its table into `log`.

    Clocks are left as they are in use, caches are flushed before each kernel (the default).
    """
    return [
        *(ncu, "--csv", "--page", "raw", "--print-units", "base", "--clock-control", "none"),
        *("--target-processes", "all", "--kernel-name", KERNELS),
        *("--metrics", ",".join(metrics), "--log-file", str(log), *child),
    ]


def run_ncu(child: Sequence[str], folder: Path, *, seconds: float) -> str:
    """Runs `child` under Nsight Compute; the text of its log, which holds the table."""
    ncu = find_ncu()
    log = folder / "ncu.csv"
    for metrics in (tuple(METRICS.values()), ESSENTIAL):
        log.unlink(missing_ok=True)
        done = _run(ncu_command(ncu, child, log, metrics), seconds)
        text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
        said = f"{text}\n{done.stdout}\n{done.stderr}"
        if done.returncode == 0 and '"ID",' in text:
            return text
        if metrics == ESSENTIAL or not _UNKNOWN_METRIC.search(said):
            break
    raise refusal_of(said, done.returncode)


def _run(command: list[str], seconds: float) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=seconds,
            env=settings.child_environment({}),
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise LaunchError(
            "ncu", f"nothing after {seconds:g} s", "profile fewer kernels or lengths at a time"
        ) from error


def refusal_of(said: str, code: int) -> Unsupported | LaunchError | DeviceMissing:
    """The error that explains why Nsight Compute gave no table."""
    if "ERR_NVGPUCTRPERM" in said:
        return Unsupported(
            "The driver lets only administrators read the GPU's counters (ERR_NVGPUCTRPERM). Run "
            "as root, start the container with --cap-add=SYS_ADMIN, or let everyone: put `options "
            "nvidia NVreg_RestrictProfilingToAdminUsers=0` into /etc/modprobe.d/nvidia.conf and "
            "load the driver again."
        )
    if "No kernels were profiled" in said and not code:
        return LaunchError("ncu", "no kernels", "none of the configurations ran on this GPU")
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line for line in lines if "==ERROR==" in line or "Error" in line] or lines
    last = errors[-1] if errors else "without a word"
    return LaunchError("ncu", f"exit code {code}", f"it said: {last[:300]}")
