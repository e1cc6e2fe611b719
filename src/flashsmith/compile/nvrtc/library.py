"""Which NVRTC there is: found and told apart by its files alone, nothing is loaded."""

from __future__ import annotations

import functools
import hashlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from flashsmith.base import settings
from flashsmith.base.errors import CompilerMissing

# First driver branch of each CUDA major version (CUDA release notes, "CUDA Driver Versions").
DRIVER_BRANCHES = {13: 580, 12: 525}
DRIVER_VERSION_FILE = Path("/proc/driver/nvidia/version")
TOOLKITS = (Path("/usr/local/cuda"), Path("/usr/lib/x86_64-linux-gnu"), Path("/usr/lib64"))


class NvrtcLibrary(NamedTuple):
    """One NVRTC on this machine; `version` is part of every cache key."""

    path: Path
    version: str  # "13.4.92", or what is known of the file
    origin: str  # "setting", "wheel", "torch" or "toolkit"

    @property
    def cuda_major(self) -> int | None:
        """13 for any CUDA 13 library, None if its name does not say."""
        found = re.match(r"(\d+)\.", self.version) or re.search(r"\.so\.(\d+)", self.path.name)
        return int(found[1]) if found else None

    @property
    def compiler(self) -> str:
        """Name and version, as records show it."""
        return f"nvrtc {self.version}"


def find_nvrtc() -> NvrtcLibrary:
    """The NVRTC to use: the setting's, a wheel's that fits the driver, torch's, a toolkit's."""
    return _find(settings.nvrtc_path(), driver_cuda_major())


def driver_cuda_major() -> int | None:
    """The CUDA major version whose cubins the installed driver loads; None with no driver."""
    try:
        text = DRIVER_VERSION_FILE.read_text()
    except OSError:
        return None
    found = re.search(r"\s(\d{3,})\.\d+", text)
    branch = int(found[1]) if found else 0
    return next((major for major, first in DRIVER_BRANCHES.items() if branch >= first), None)


def driver_misfit(library: NvrtcLibrary) -> str:
    """Advice when the driver is too old for the cubins of `library`, else an empty text."""
    driver, compiler = driver_cuda_major(), library.cuda_major
    if driver is None or compiler is None or compiler <= driver:
        return ""
    return (
        f"the driver loads cubins of CUDA {driver}, {library.compiler} makes those of CUDA "
        f"{compiler}; install flashsmith[cu{driver}] or a driver of branch "
        f"{DRIVER_BRANCHES.get(compiler, 'of its own')} or later"
    )


def loads_on_driver(compiler: str) -> bool:
    """Whether the driver is new enough for cubins of `compiler` ("nvrtc 13.4.92")."""
    driver, found = driver_cuda_major(), re.search(r"(\d+)\.", compiler)
    return driver is None or found is None or int(found[1]) <= driver


@functools.lru_cache(maxsize=8)
def _find(setting: Path | None, driver: int | None) -> NvrtcLibrary:
    if setting is not None:
        if not setting.is_file():
            raise CompilerMissing(
                f"{settings.NVRTC} is {str(setting)!r}, which is not a file; it must name an "
                f"NVRTC library such as libnvrtc.so.13; correct it or unset it."
            )
        return NvrtcLibrary(setting, _version(setting), "setting")
    found = list(_candidates())
    fitting = [n for n in found if driver is None or (n.cuda_major or 0) <= driver]
    for library in fitting or found:
        return library
    raise CompilerMissing(
        "no NVRTC was found in the Python environment, in torch or in /usr/local/cuda; it "
        "compiles the kernels; install the package nvidia-cuda-nvrtc or set " + settings.NVRTC + "."
    )


def _candidates() -> Iterator[NvrtcLibrary]:
    folders = [Path(entry) for entry in sys.path if entry]
    # The folder of a CUDA 13 wheel names the major version, that of a CUDA 12 wheel the package.
    for pattern in ("nvidia/cu13/lib/libnvrtc.so.13", "nvidia/cuda_nvrtc/lib/libnvrtc.so.12"):
        for folder in folders:
            if (folder / pattern).is_file():
                yield _library(folder / pattern, "wheel")
    for folder in folders:
        for path in sorted((folder / "torch" / "lib").glob("libnvrtc*.so*")):
            if "builtins" not in path.name:
                yield _library(path, "torch")
    for root in TOOLKITS:
        for folder in (root, root / "lib64", root / "lib"):
            # Newest first; a plain libnvrtc.so is only there for linking.
            for path in sorted(folder.glob("libnvrtc.so.[0-9]*"), key=_numbers, reverse=True):
                yield _library(path, "toolkit")


def _numbers(path: Path) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", path.name)]


def _library(path: Path, origin: str) -> NvrtcLibrary:
    return NvrtcLibrary(path, _version(path), origin)


def _version(path: Path) -> str:
    """`13.4.92` from the wheel's metadata or the file's full name, else the file's identity."""
    full = re.search(r"\.so\.(\d+\.\d+\.\d+)$", path.resolve().name)
    if full:
        return full[1]
    for site in path.parents[3:4]:
        names = [entry.name for entry in site.glob("nvidia_cuda_nvrtc*.dist-info")]
        major = path.name.rpartition(".")[2]
        for name in names:
            version = re.match(rf"nvidia_cuda_nvrtc\w*-({major}\.[\d.]+)\.dist-info", name)
            if version:
                return version[1]
    stat = path.stat()
    identity = hashlib.sha256(f"{stat.st_size} {stat.st_mtime_ns}".encode()).hexdigest()[:12]
    return f"of file {path.name} {identity}"
