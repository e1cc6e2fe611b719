"""nvcc: where it is, and how one file or one library is made with it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from flashsmith.base.errors import CompileError, CompilerMissing

TOOLKIT = Path("/usr/local/cuda/bin/nvcc")
# Device code by the same rules as NVRTC's; constexpr members serve host and device alike.
OPTIONS = ("-std=c++20", "--expt-relaxed-constexpr", "-O3", "-Xcompiler=-fPIC,-fvisibility=hidden")


def find_nvcc() -> Path:
    """nvcc from PATH, else from the wheel `nvidia-cuda-nvcc`, else from the toolkit's folder."""
    on_path = shutil.which("nvcc")
    wheels = [Path(entry) / "nvidia" / "cu13" / "bin" / "nvcc" for entry in sys.path if entry]
    for candidate in ([Path(on_path)] if on_path else []) + [*wheels, TOOLKIT]:
        if candidate.is_file():
            return candidate
    raise CompilerMissing(
        "no nvcc was found on PATH, in the Python environment or in /usr/local/cuda; a library is "
        "built with it; install nvidia-cuda-nvcc or the CUDA toolkit, or build a bundle instead."
    )


def nvcc_version(nvcc: Path) -> str:
    """`nvcc 13.0.88`, as records show it."""
    text = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=False).stdout
    versions = [word[1:].rstrip(",") for word in text.split() if word[:1] == "V"]
    return f"nvcc {versions[0] if versions else 'of unknown version'}"


def compile_object(
    nvcc: Path,
    source: Path,
    output: Path,
    *,
    subject: str,
    include: Sequence[Path],
    arches: Sequence[str],
) -> None:
    """Compiles one file to an object; raises with the first error where nvcc refuses it."""
    targets = [f"-gencode=arch={arch.replace('sm_', 'compute_')},code={arch}" for arch in arches]
    folders = [f"-I{folder}" for folder in include]
    _run([nvcc, *OPTIONS, *targets, *folders, "-c", source, "-o", output], subject, source)


def link_library(nvcc: Path, objects: Sequence[Path], output: Path) -> None:
    """Links objects to a shared library that brings its own CUDA runtime."""
    _run([nvcc, "-shared", "-cudart=static", *objects, "-o", output], output.name, output)


def _run(command: Sequence[str | Path], subject: str, source: Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise CompileError(subject, done.stderr or done.stdout, source)
