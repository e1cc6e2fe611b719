"""What a measurement was taken on: GPU, driver, compiler, versions, commit and date."""

from __future__ import annotations

import platform
import subprocess
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import cast

from flashsmith import __version__
from flashsmith.base import settings
from flashsmith.base.errors import ArgumentError
from flashsmith.measure.gpu_state import GpuMonitor
from flashsmith.runtime.cuda.device import CudaDevice
from flashsmith.runtime.device import Device

_PACKAGES = ("numpy", "torch")


@dataclass(frozen=True, slots=True)
class Environment:
    """Everything a reader needs to judge a number, or to take it again."""

    device: str
    arch: str
    sm_count: int
    driver: str  # "580.159.03", empty on the emulator
    cuda: str  # newest version the driver runs
    max_sm_mhz: int | None
    power_limit_w: float | None
    compiler: str
    python: str
    packages: dict[str, str]
    flashsmith: str
    commit: str  # "unknown" outside a checkout
    dirty: bool
    date: str  # UTC, ISO 8601


def environment_of(device: Device, *, compiler: str = "") -> Environment:
    """The environment of `device` at this moment."""
    driver, cuda, mhz, watt = "", "", None, None
    if device.can_time:
        gpu = timed_device(device)
        monitor = monitor_of(gpu)
        driver = monitor.driver_version()
        cuda = ".".join(map(str, gpu.driver.version))
        mhz, watt = monitor.max_sm_mhz(), monitor.power_limit_w()
    commit, dirty = commit_of_checkout()
    return Environment(
        device=device.name,
        arch=device.arch,
        sm_count=device.sm_count,
        driver=driver,
        cuda=cuda,
        max_sm_mhz=mhz,
        power_limit_w=watt,
        compiler=compiler,
        python=platform.python_version(),
        packages=_versions(),
        flashsmith=__version__,
        commit=commit,
        dirty=dirty,
        date=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def timed_device(device: Device) -> CudaDevice:
    """The GPU behind a device that can be timed; raises for one that cannot."""
    if not device.can_time:
        raise ArgumentError(f"{device.name} cannot be timed; use a GPU (--device cuda).")
    return cast(CudaDevice, device)


def monitor_of(device: CudaDevice) -> GpuMonitor:
    """What reads the clocks of a device; its PCI address is the same for CUDA and NVML."""
    return GpuMonitor(device.driver.text("cuDeviceGetPCIBusId", device.handle))


def commit_of_checkout() -> tuple[str, bool]:
    """The commit this package is run from, and whether files differ from it.

    A copy that is no checkout is told by FLASHSMITH_COMMIT.
    """
    told = settings.commit()
    if told:
        return told, False
    here = Path(__file__).parent
    commit = _git(here, "rev-parse", "--short=12", "HEAD")
    if commit is None:
        return "unknown", False
    return commit, bool(_git(here, "status", "--porcelain", "--untracked-files=no"))


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def _versions() -> dict[str, str]:
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
