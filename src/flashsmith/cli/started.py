"""How long this process has been running: a budget counts from where its user began to wait."""

from __future__ import annotations

import os
import time
from pathlib import Path

_IMPORTED = time.monotonic()


def seconds_running() -> float:
    """Seconds since the process began; where the system does not say, since the import of ours."""
    try:
        after_name = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2]
        began = int(after_name.split()[19]) / os.sysconf("SC_CLK_TCK")
        return max(time.clock_gettime(time.CLOCK_BOOTTIME) - began, 0.0)
    except (OSError, ValueError, AttributeError, IndexError):
        return time.monotonic() - _IMPORTED
