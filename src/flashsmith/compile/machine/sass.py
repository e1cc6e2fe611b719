"""SASS of a cubin, by nvdisasm from the wheel or from PATH."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from flashsmith.base.errors import CompilerMissing, DamagedFile

TOOLKIT = Path("/usr/local/cuda/bin/nvdisasm")


def find_nvdisasm() -> Path:
    """nvdisasm from the wheel `nvidia-cuda-nvdisasm`, else from PATH, else of the toolkit."""
    on_path = shutil.which("nvdisasm")
    wheels = [Path(entry) / "nvidia" / "cu13" / "bin" / "nvdisasm" for entry in sys.path if entry]
    for candidate in (*wheels, *([Path(on_path)] if on_path else []), TOOLKIT):
        if candidate.is_file():
            return candidate
    raise CompilerMissing(
        "no nvdisasm was found in the Python environment, on PATH or in /usr/local/cuda; SASS is "
        "read with it; install nvidia-cuda-nvdisasm."
    )


def disassemble(cubin: bytes) -> str:
    """The instructions of every function in a cubin, one a line, with their addresses."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(find_nvdisasm()), "--print-code", file.name]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise DamagedFile(
            f"nvdisasm refused a cubin: {done.stderr.strip()}; it reads those of its own version "
            f"and older; install a newer nvidia-cuda-nvdisasm."
        )
    return done.stdout
