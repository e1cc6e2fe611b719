"""Clocks, power and temperature of a GPU while it is measured, read through NVML."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from flashsmith.base.loose_types import CLibrary

CLOCKS_MOVED = 0.02  # a change of the SM clock by more than this flags a record
_SM_CLOCK, _MEMORY_CLOCK = 1, 2  # nvmlClockType_t
_GPU_SENSOR = 0  # nvmlTemperatureSensors_t


@dataclass(frozen=True, slots=True)
class GpuState:
    """One reading."""

    sm_mhz: int
    memory_mhz: int
    power_w: float
    temperature_c: int


class GpuMonitor:
    """Reads one GPU; every reading is None on a machine without NVML."""

    def __init__(self, pci_bus_id: str) -> None:
        self._library: CLibrary | None = None
        self._handle = ctypes.c_void_p()
        try:
            name = "nvml.dll" if sys.platform == "win32" else "libnvidia-ml.so.1"
            library = ctypes.CDLL(name)
        except OSError:
            return
        bus_id = pci_bus_id.encode()
        if library.nvmlInit_v2() == 0 and (
            library.nvmlDeviceGetHandleByPciBusId_v2(bus_id, ctypes.byref(self._handle)) == 0
        ):
            self._library = library

    def read(self) -> GpuState | None:
        """The state at this moment."""
        if self._library is None:
            return None
        return GpuState(
            sm_mhz=self._number("nvmlDeviceGetClockInfo", _SM_CLOCK),
            memory_mhz=self._number("nvmlDeviceGetClockInfo", _MEMORY_CLOCK),
            power_w=self._number("nvmlDeviceGetPowerUsage") / 1000,
            temperature_c=self._number("nvmlDeviceGetTemperature", _GPU_SENSOR),
        )

    def power_limit_w(self) -> float | None:
        """The power the GPU may draw."""
        if self._library is None:
            return None
        return self._number("nvmlDeviceGetEnforcedPowerLimit") / 1000

    def max_sm_mhz(self) -> int | None:
        """The highest clock the SMs may have."""
        if self._library is None:
            return None
        return self._number("nvmlDeviceGetMaxClockInfo", _SM_CLOCK)

    def driver_version(self) -> str:
        """`580.159.03`, or an empty text."""
        out = ctypes.create_string_buffer(96)
        if self._library is None or self._library.nvmlSystemGetDriverVersion(out, len(out)):
            return ""
        return out.value.decode()

    def _number(self, name: str, *arguments: int) -> int:
        """What NVML's `name` returns through its last argument; 0 where the GPU does not say."""
        found = ctypes.c_uint()
        function = getattr(self._library, name, None)  # an old driver lacks some
        if function is None or function(self._handle, *arguments, ctypes.byref(found)):
            return 0
        return found.value


def clocks_moved(states: Sequence[GpuState | None]) -> bool:
    """Whether the SM clock changed by more than 2 % between readings."""
    clocks = [state.sm_mhz for state in states if state is not None and state.sm_mhz]
    return bool(clocks) and max(clocks) - min(clocks) > CLOCKS_MOVED * max(clocks)
