"""`flashsmith env`: what is installed on this machine, and what is missing for what."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
from importlib import metadata
from pathlib import Path

from flashsmith import __version__, arch
from flashsmith.base import settings
from flashsmith.base.errors import CompilerMissing, DamagedFile, FlashsmithError
from flashsmith.cli import options
from flashsmith.cli.output import Row, show
from flashsmith.compile.ahead_of_time.bundle import open_bundle
from flashsmith.compile.cache import upkeep as cache_upkeep
from flashsmith.compile.machine.sass import find_nvdisasm
from flashsmith.compile.nvrtc.library import driver_misfit, find_nvrtc
from flashsmith.runtime.cuda.driver import Driver, find_driver
from flashsmith.tuner.choose import measured
from flashsmith.tuner.choose.shipped_kernels import current_kernels

# Package, what needs it, and the command that brings it.
PACKAGES = (
    ("numpy", "everything", "pip install flashsmith"),
    ("typer", "the command line", "pip install flashsmith"),
    ("rich", "tables in a terminal", "pip install flashsmith"),
    ("torch", "torch tensors, torch.compile, SDPA as a peer", "pip install 'flashsmith[torch]'"),
    ("cupy-cuda13x", "CuPy arrays", "pip install cupy-cuda13x"),
    ("jax", "JAX arrays", "pip install jax"),
    ("plotly", "plots in reports", "pip install 'flashsmith[report]'"),
    ("optuna", "model-based search", "pip install 'flashsmith[tune]'"),
    ("ray", "tuning on more than one machine", "pip install 'flashsmith[ray]'"),
)
# Program, what needs it, and where it comes from.
PROGRAMS = (
    ("nvdisasm", "SASS in `flashsmith inspect`", "pip install nvidia-cuda-nvdisasm"),
    ("ncu", "profiling", "part of the CUDA toolkit: Nsight Compute"),
    ("nvcc", "ahead-of-time libraries", "part of the CUDA toolkit"),
    ("compute-sanitizer", "memory checks of a tuned kernel", "part of the CUDA toolkit"),
)
MAJOR, MINOR, SM_COUNT = 75, 76, 16  # CUdevice_attribute, cuda.h
# Whether this is a checkout with its Makefile, whose verbs an installed package does not have.
IN_CHECKOUT = (Path(__file__).parents[4] / "Makefile").is_file()


def command(json: options.JsonOption = False, csv: options.CsvOption = False) -> None:
    """Say what is installed here, and what is missing for what.

    Example: flashsmith env --json
    """
    rows = [
        _row("flashsmith", __version__),
        _row("Python", f"{platform.python_version()} on {platform.system()} {platform.machine()}"),
        *_compiler(),
        _shipped(),
        *_driver_and_gpus(),
        *(_package(*package) for package in PACKAGES),
        *(_program(*program) for program in PROGRAMS),
        _cache(),
    ]
    if json or csv:
        show(rows, json=json, csv=csv)
        return
    there = [row for row in rows if row["found"] is not None]
    missing = [row for row in rows if row["found"] is None]
    show(there, columns=("what", "found"), title="found here", prose=("found",))
    if missing:
        columns = ("what", "needed_for", "to_get_it")
        show(missing, columns=columns, title="missing", prose=columns[1:])


def _row(what: str, found: str, needed_for: str = "", to_get_it: str = "") -> Row:
    """A thing that is there has no `to_get_it`; one that is missing has no `found`."""
    return {
        "what": what,
        "found": found or None,
        "needed_for": needed_for or None,
        "to_get_it": to_get_it or None,
    }


def _compiler() -> list[Row]:
    needed_for = "compiling kernels"
    try:
        library = find_nvrtc()
    except CompilerMissing:
        return [_row("NVRTC", "", needed_for, "pip install nvidia-cuda-nvrtc")]
    fits = driver_misfit(library) or f"for drivers of CUDA {library.cuda_major or 'any'} and later"
    return [_row("NVRTC", f"{library.version} ({library.origin}), {fits}", needed_for)]


def _shipped() -> Row:
    """The kernels that came with the package; those of other sources are never used."""
    needed_for = "first calls that compile nothing"
    texts = []
    for path in sorted(measured.SHIPPED_FOLDER.glob("*.bundle")):
        try:
            kernels, current = len(open_bundle(path)), current_kernels(path)
        except DamagedFile as error:
            texts.append(str(error))
            continue
        old = "" if current == kernels else f", {kernels - current} of them of other sources"
        texts.append(f"{path.stem}: {kernels} kernels{old}")
    if texts:
        return _row("shipped kernels", "; ".join(texts), needed_for)
    if IN_CHECKOUT:
        return _row("shipped kernels", "", needed_for, "make wheel")
    return _row("shipped kernels", "none: the first call of a kernel compiles it", needed_for)


def _driver_and_gpus() -> list[Row]:
    needed_for = "running on a GPU; the emulator needs none"
    driver = find_driver()
    if isinstance(driver, str):
        return [_row("GPU", "", needed_for, f"an NVIDIA GPU and its driver: {driver}")]
    major, minor = driver.version
    count = driver.integer("cuDeviceGetCount")
    return [
        _row("driver", f"CUDA {major}.{minor}", needed_for),
        *(_row(f"GPU {n}", _gpu_text(driver, n), needed_for) for n in range(count)),
    ]


def _gpu_text(driver: Driver, ordinal: int) -> str:
    name = driver.text("cuDeviceGetName", ordinal)
    major, minor, sm_count = (
        driver.integer("cuDeviceGetAttribute", attribute, ordinal)
        for attribute in (MAJOR, MINOR, SM_COUNT)
    )
    try:
        architecture = arch.of_capability(major, minor).name
    except FlashsmithError:
        architecture = "an architecture without kernels"
    return f"{name}, {architecture} ({major}.{minor}), {sm_count} SMs"


def _package(name: str, needed_for: str, to_get_it: str) -> Row:
    try:
        return _row(name, metadata.version(name), needed_for)
    except metadata.PackageNotFoundError:
        return _row(name, "", needed_for, to_get_it)


def _program(name: str, needed_for: str, to_get_it: str) -> Row:
    path = _nvdisasm() if name == "nvdisasm" else shutil.which(name)
    if path is None:
        return _row(name, "", needed_for, to_get_it)
    return _row(name, f"{_program_version(path)} at {path}", needed_for)


def _nvdisasm() -> str | None:
    """It may come with a wheel, which puts nothing on PATH."""
    try:
        return str(find_nvdisasm())
    except CompilerMissing:
        return None


def _program_version(path: str) -> str:
    """The last version number that `--version` prints, as NVIDIA's tools put it last."""
    try:
        answer = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return "does not start"
    versions = re.findall(r"\d+\.\d+(?:\.\d+)*", answer.stdout)
    return versions[-1] if versions else "of unknown version"


def _cache() -> Row:
    root = settings.cache_dir()
    present = cache_upkeep.entries(root)
    megabytes = sum(entry.n_bytes for entry in present) / 1e6
    limit = settings.cache_limit_bytes() / 1e6
    return _row(
        "kernel cache",
        f"{root}: {len(present)} entries, {megabytes:.1f} of {limit:,.0f} MB",
        "not compiling twice",
    )
