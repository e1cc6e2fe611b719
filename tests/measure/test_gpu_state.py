"""Readings of NVML, from a library of this test."""

import ctypes

import pytest

from flashsmith.measure.gpu_state import GpuMonitor


class FakeNvml:
    """A driver that knows energy and what holds the clocks back."""

    nvmlInit_v2 = staticmethod(lambda: 0)  # noqa: N815
    nvmlDeviceGetHandleByPciBusId_v2 = staticmethod(lambda *_: 0)  # noqa: N815

    @staticmethod
    def nvmlDeviceGetTotalEnergyConsumption(_handle, out):  # noqa: N802
        ctypes.cast(out, ctypes.POINTER(ctypes.c_ulonglong))[0] = 5 << 40
        return 0

    @staticmethod
    def nvmlDeviceGetCurrentClocksEventReasons(_handle, out):  # noqa: N802
        ctypes.cast(out, ctypes.POINTER(ctypes.c_ulonglong))[0] = 0x25
        return 0


@pytest.fixture
def monitor(monkeypatch):
    """A monitor of that driver."""
    monkeypatch.setattr(ctypes, "CDLL", lambda _: FakeNvml())
    return GpuMonitor("0000:00:00.0")


def test_energy_is_joules_and_longer_than_32_bits(monitor):
    assert monitor.energy_j() == (5 << 40) / 1000


def test_what_holds_the_clocks_back_is_named(monitor):
    assert monitor.held_back_by() == ("power cap", "temperature")


def test_what_a_driver_does_not_know_is_zero(monitor):
    assert monitor.power_limit_w() == 0


def test_without_nvml_nothing_is_known(monkeypatch):
    def missing(_):
        raise OSError

    monkeypatch.setattr(ctypes, "CDLL", missing)
    monitor = GpuMonitor("0000:00:00.0")
    assert (monitor.energy_j(), monitor.held_back_by(), monitor.read()) == (None, None, None)
