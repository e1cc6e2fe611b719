"""Which device a call runs on when it names none."""

from __future__ import annotations

import threading

from flashsmith.base import settings
from flashsmith.base.errors import ArgumentError
from flashsmith.base.forks import call_in_forked_child
from flashsmith.runtime.cuda.driver import find_driver
from flashsmith.runtime.device import Device

_lock = threading.Lock()
_opened: dict[tuple[str, int], Device] = {}


@call_in_forked_child
def _forget_devices() -> None:
    """A child opens devices of its own."""
    global _lock
    _lock = threading.Lock()
    _opened.clear()


def has_cuda() -> bool:
    """Whether this machine has a GPU that the CUDA driver sees."""
    return not isinstance(find_driver(), str)


def gpu_names() -> list[str]:
    """The names of the GPUs that the CUDA driver sees, by ordinal; empty where there are none."""
    driver = find_driver()
    if isinstance(driver, str):
        return []
    handles = [driver.integer("cuDeviceGet", n) for n in range(driver.integer("cuDeviceGetCount"))]
    return [driver.text("cuDeviceGetName", handle) for handle in handles]


def current_gpu() -> int:
    """The ordinal of the GPU that a library made current in this thread, else 0."""
    driver = find_driver()
    if isinstance(driver, str) or not driver.pointer("cuCtxGetCurrent"):
        return 0
    handle = driver.integer("cuCtxGetDevice")
    count = driver.integer("cuDeviceGetCount")
    return next((n for n in range(count) if driver.integer("cuDeviceGet", n) == handle), 0)


def default_device_name() -> str:
    """`FLASHSMITH_DEVICE` if set, else `cuda` where there is a GPU, else `emulator`."""
    return settings.device_name() or ("cuda" if has_cuda() else "emulator")


def open_device(name: str, ordinal: int = 0) -> Device:
    """A new device by name; raises `DeviceMissing` for `cuda` on a machine with no GPU."""
    if name == "cuda":
        from flashsmith.runtime.cuda.device import CudaDevice

        return CudaDevice(ordinal)
    if name == "emulator":
        from flashsmith.runtime.emulated import EmulatedDevice

        return EmulatedDevice()
    raise ArgumentError(f"device is {name!r}; it must be 'cuda' or 'emulator'.")


def default_device(name: str | None = None, ordinal: int = 0) -> Device:
    """The process's device of that name (default: `default_device_name`), opened on first use."""
    key = (name or default_device_name(), ordinal)
    device = _opened.get(key)
    if device is None:
        with _lock:
            device = _opened.get(key)
            if device is None:
                device = _opened[key] = open_device(*key)
    return device
