"""Times what a newcomer waits for: a built wheel to the first attention output, from nothing.

    python tools/time_install.py WHEEL [--rounds N] -o FILE

Each round makes an environment and an empty home, which do not count. What counts is `pip install
WHEEL`, with all that it depends on and no cache of pip's, and then a process that runs the first
lines of the README's example: on a machine without a GPU NVRTC compiles the kernel, and the
emulator runs it.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import tempfile
import time
import venv
from dataclasses import asdict
from pathlib import Path

from flashsmith.base import settings
from flashsmith.measure.environment import environment_of
from flashsmith.measure.record import Record, append_records
from flashsmith.runtime.devices import default_device

EXAMPLE = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
FIRST_LINES = EXAMPLE.split("```python\n")[1].split("\nfor config in")[0]
INSTALL = ("-m", "pip", "install", "--quiet", "--no-cache-dir", "--disable-pip-version-check")


def seconds_of(python: Path, *arguments: str, home: Path) -> float:
    """How long a process of the new environment takes."""
    changes = {"HOME": str(home), "XDG_CACHE_HOME": str(home / "cache"), "PYTHONPATH": ""}
    changes |= {"XDG_DATA_HOME": str(home / "data"), "PYTHONDONTWRITEBYTECODE": ""}
    began = time.perf_counter()
    environment = settings.child_environment(changes)
    subprocess.run([str(python), *arguments], cwd=home, env=environment, check=True)
    return time.perf_counter() - began


def timed(wheel: Path) -> tuple[float, float]:
    """Seconds of the installation, and from there to the first output."""
    with tempfile.TemporaryDirectory() as folder:
        venv.create(Path(folder) / "env", with_pip=True)
        python, home = Path(folder) / "env" / "bin" / "python", Path(folder) / "home"
        home.mkdir()
        installing = seconds_of(python, *INSTALL, str(wheel), home=home)
        return installing, seconds_of(python, "-c", FIRST_LINES, home=home)


def main() -> None:
    """Times, prints and appends a record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("-o", dest="output", type=Path, required=True)
    arguments = parser.parse_args()
    rounds = [timed(arguments.wheel.resolve()) for _ in range(arguments.rounds)]
    installing, first = zip(*rounds, strict=True)
    result = {
        "install_s": statistics.median(installing),
        "first_output_s": statistics.median(first),
        "whole_s": statistics.median(map(sum, rounds)),
        "most_whole_s": max(map(sum, rounds)),
        "rounds": len(rounds),
        "wheel_bytes": arguments.wheel.stat().st_size,
        "cores": os.cpu_count(),
        "load_1m": os.getloadavg()[0],
    }
    print(result)
    environment = asdict(environment_of(default_device("emulator"), compiler="none"))
    append_records(arguments.output, [Record({"suite": "install"}, result, environment)])


if __name__ == "__main__":
    main()
