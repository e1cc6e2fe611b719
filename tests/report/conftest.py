"""Data for reports: records of a GPU and of a machine without one, and a browser to open pages."""

import os
import shutil

import pytest
from browser import Browser
from report_records import CONFIGS, ENVIRONMENT, profiled, record

from flashsmith.base.dtypes import DType
from flashsmith.problem.attention import AttentionProblem
from flashsmith.report.sources import ReportData
from flashsmith.tuner.run.counting import Place
from flashsmith.tuner.store.measurement import Measurement, MeasurementKey
from flashsmith.tuner.store.outcome import DidNotCompile, Timed, Verified


@pytest.fixture
def gpu_data():
    records = []
    for length in (1024, 4096):
        scale = (length / 1024) ** 2
        records += [
            record("paper", "flashsmith", length, 100.0 * scale),
            record("paper", "cuDNN", length, 120.0 * scale),
            record("paper", "GEMM", length, 1400.0),
        ]
    records += [
        record("progression", config.short_form(), 4096, 2000.0 - 100 * n)
        for n, config in enumerate(CONFIGS)
    ]
    problem = AttentionProblem(1, 3, 3, 512, 512, 128, DType.FP16)
    facts = {**ENVIRONMENT, "registers": 168, "blocks_per_sm": 3, "smem_bytes": 49152}
    facts |= {"limit": "registers", "spill_bytes": 0}
    measurements = [
        Measurement(
            MeasurementKey("NVIDIA H200", "sm_90a", "", "", "", c.short_form(), problem, "screen"),
            Timed(50.0 + n, 49.0, 52.0, 5, f"{n % 2:016x}") if n else DidNotCompile("no room"),
            environment=facts,
        )
        for n, c in enumerate(CONFIGS)
    ]
    places = {
        (m.key.config, problem): Place(n, 1 + (n - 1) / 10, "shared memory")
        for n, m in enumerate(measurements, start=1)
    }
    counted = tuple(profiled(c.short_form(), 4096, 40.0 + n) for n, c in enumerate(CONFIGS))
    return ReportData(tuple(records), tuple(measurements), "a test", places, counted)


@pytest.fixture
def gpuless_data(gpu_data):
    verified = [
        Measurement(m.key, Verified(f"{n % 3:016x}"), environment=m.environment)
        for n, m in enumerate(gpu_data.measurements)
    ]
    return ReportData((), tuple(verified), "a test without a GPU", gpu_data.places)


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    """One headless Chromium for all tests that open pages."""
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        if os.environ.get("CI"):
            pytest.fail("chromium is not installed, and CI must open the pages")
        pytest.skip("chromium is not installed: the page is written but not opened")
    started = Browser(program, tmp_path_factory.mktemp("profile"))
    yield started
    started.close()
