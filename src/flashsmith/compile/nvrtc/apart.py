"""Compiling in a process of its own, for options whose effect NVRTC does not give up again.

NVRTC 13.4 keeps the effect of -G for all later units of its process: kernels that have no spills
came out with 174 bytes of them after one debug unit.
"""

from __future__ import annotations

import base64
import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from flashsmith.compile.nvrtc.library import NvrtcLibrary
from flashsmith.compile.nvrtc.program import NvrtcOutput, RefusedUnit, compile_program


def compile_apart(
    library: NvrtcLibrary, source: str, file_name: str, options: Sequence[str]
) -> NvrtcOutput:
    """As `nvrtc.compile_program`, in a child process."""
    job = {
        "library": [str(library.path), library.version, library.origin],
        "unit": [source, file_name, list(options)],
    }
    try:
        done = subprocess.run(
            [sys.executable, "-m", "flashsmith.compile.nvrtc.apart"],
            input=json.dumps(job),
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError as error:
        raise RefusedUnit(f"error: the compiler's process did not start: {error}") from error
    if done.returncode:
        raise RefusedUnit(f"error: the compiler's process ended: {done.stderr.strip()[-500:]}")
    answer = json.loads(done.stdout)
    if "refused" in answer:
        raise RefusedUnit(answer["refused"])
    return NvrtcOutput(answer["ptx"], base64.b64decode(answer["cubin"]), answer["log"])


def main() -> None:
    """One job on stdin, its answer on stdout."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for who asked: no unit is refused
    job = json.load(sys.stdin)
    path, version, origin = job["library"]
    source, file_name, options = job["unit"]
    try:
        made = compile_program(
            NvrtcLibrary(Path(path), version, origin), source, file_name, options
        )
        answer = {
            "ptx": made.ptx,
            "cubin": base64.b64encode(made.cubin).decode(),
            "log": made.log,
        }
    except RefusedUnit as error:
        answer = {"refused": error.log}
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()
