"""The winner under NVIDIA's memory checker, where it is installed."""

from __future__ import annotations

import shutil
import subprocess
import sys
from functools import cache

from flashsmith.base import settings
from flashsmith.kernels.kernel import KernelConfig

_SECONDS = 180.0


@cache
def sanitizer_complaint(config: KernelConfig) -> str:
    """What compute-sanitizer's memcheck says of the quick cases; empty if nothing, or not there."""
    tool = shutil.which("compute-sanitizer")
    if tool is None:
        return ""
    verify = [sys.executable, "-m", "flashsmith", "verify", config.short_form(), "--device", "cuda"]
    try:
        done = subprocess.run(
            [tool, "--tool", "memcheck", "--error-exitcode", "9", *verify],
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            env=settings.child_environment({}),
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"compute-sanitizer was not done after {_SECONDS:g} s"
    if done.returncode == 0:
        return ""
    lines = [line for line in done.stdout.splitlines() if "=========" in line]
    found = next((line for line in lines if "Invalid" in line or "Error" in line), lines[-1:])
    return f"compute-sanitizer: {found}"
