"""Readings of NVML, from a library of this test."""

import ctypes

import pytest

from flashsmith.measure.gpu_state import GpuMonitor


class FakeNvml:
    """A driver that knows the power limit alone."""

    nvmlInit_v2 = staticmethod(lambda: 0)  # noqa: N815
    nvmlDeviceGetHandleByPciBusId_v2 = staticmethod(lambda *_: 0)  # noqa: N815

    @staticmethod
    def nvmlDeviceGetEnforcedPowerLimit(_handle, out):  # noqa: N802
        ctypes.cast(out, ctypes.POINTER(ctypes.c_uint))[0] = 700_000
        return 0


@pytest.fixture
def monitor(monkeypatch):
    """A monitor of that driver."""
    monkeypatch.setattr(ctypes, "CDLL", lambda _: FakeNvml())
    return GpuMonitor("0000:00:00.0")


def test_power_is_watts(monitor):
    assert monitor.power_limit_w() == 700


def test_what_a_driver_does_not_know_is_zero(monitor):
    assert monitor.max_sm_mhz() == 0


def test_without_nvml_nothing_is_known(monkeypatch):
    def missing(_):
        raise OSError

    monkeypatch.setattr(ctypes, "CDLL", missing)
    monitor = GpuMonitor("0000:00:00.0")
    assert (monitor.power_limit_w(), monitor.max_sm_mhz(), monitor.read()) == (None, None, None)
