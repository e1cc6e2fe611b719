"""The checker on devices: the smoke set is right, and a broken kernel is not."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from flashsmith.base.dtypes import DType
from flashsmith.base.errors import EmulationError, LaunchError
from flashsmith.check import verdict as verdict_module
from flashsmith.check.cases import Case, full_cases, quick_cases
from flashsmith.check.survey import check_on_device, check_one, compile_jobs
from flashsmith.check.verdict import check_case
from flashsmith.kernels import parse_config, resolve_key
from flashsmith.problem.attention import AttentionProblem
from flashsmith.runtime.devices import open_device
from flashsmith.runtime.run import prepare

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from device_agreement import output_of, ulps_apart

SMALL = parse_config("(BF16, 64, 64, 32, 4): async+swizzled+load_2_2_2_tiles")
UNBUILDABLE = parse_config("(FP16, 64, 64, 32, 8): load_0_0_0_tiles")


@pytest.mark.parametrize("config", resolve_key("smoke"), ids=lambda config: config.short_form())
def test_the_smoke_set_is_right_on_the_quick_cases(device, config):
    for case in quick_cases(config):
        verdict = check_case(device, config, case)
        assert verdict.ok, verdict


@pytest.mark.parametrize("case", full_cases(SMALL), ids=lambda case: case.name)
def test_one_small_configuration_is_right_on_every_case(device, case):
    verdict = check_case(device, SMALL, case)
    assert verdict.ok, verdict


def test_nan_in_the_inputs_comes_out_where_it_belongs(device):
    case = Case("nan", AttentionProblem(1, 3, 1, 70, 101, 64, DType.BF16), nan=True)
    verdict = check_case(device, SMALL, case)
    assert verdict.ok, verdict


def test_a_kernel_that_is_told_a_wrong_length_is_found(device, monkeypatch):
    """The output then misses keys, and nothing else is off: only the truth can tell."""
    case = quick_cases(SMALL)[0]
    fewer = replace(case.problem, k_len=case.problem.k_len - 1)
    monkeypatch.setattr(verdict_module, "prepare", lambda *_: prepare(device, SMALL, fewer))
    verdict = check_case(device, SMALL, case)
    assert not verdict.ok
    assert "too far from the truth" in verdict.reason


@pytest.mark.parametrize(
    "fault", [EmulationError("data race", "two warps"), LaunchError("cuLaunchKernel", "NO")]
)
def test_a_fault_of_the_kernel_is_a_verdict(fault, monkeypatch):
    device = open_device("emulator")
    case = quick_cases(SMALL)[0]

    def broken(call):
        raise fault

    monkeypatch.setattr(verdict_module, "prepare", lambda *_: broken)
    verdict = check_case(device, SMALL, case)
    assert not verdict.ok
    assert verdict.reason == str(fault)


def test_a_configuration_that_cannot_run_is_a_row_with_its_reason():
    device = open_device("emulator")
    checked = check_one(device, UNBUILDABLE, quick_cases(UNBUILDABLE)[0])
    assert not checked.wrong
    assert checked.verdict is None
    assert "mma.sync works on 16 rows" in checked.refusal


def test_a_survey_reports_progress_and_keeps_the_order():
    seen = []
    checked = check_on_device(
        open_device("emulator"),
        [SMALL],
        "quick",
        progress=lambda done, total: seen.append((done, total)),
    )
    assert seen == [(1, 3), (2, 3), (3, 3)]
    assert [one.case for one in checked] == ["ragged", "causal gqa", "masked rows"]
    assert not any(one.wrong for one in checked)


def test_what_comes_after_a_gpu_stopped_is_not_called_wrong(monkeypatch):
    device = open_device("emulator")
    case = quick_cases(SMALL)[0]

    def broken(*_):
        raise LaunchError("cuCtxSynchronize", "CUDA_ERROR_ILLEGAL_ADDRESS")

    def prepared(on, config, problem):
        return broken if problem == case.problem else prepare(on, config, problem)

    monkeypatch.setattr(verdict_module, "prepare", prepared)
    first, second, _ = check_on_device(device, [SMALL])
    assert (first.wrong, second.verdict.ok) == (True, True)  # a device that still answers goes on
    monkeypatch.setattr(device, "synchronize", broken)
    first, second, _ = check_on_device(device, [SMALL])
    assert (first.wrong, second.wrong) == (True, False)
    assert second.refusal == f"Not run: the GPU stopped at {SMALL.short_form()} on 'ragged'."


def test_every_full_case_of_a_configuration_needs_five_kernels():
    device = open_device("emulator")
    jobs = compile_jobs(device, [(SMALL, case) for case in full_cases(SMALL)])
    assert len(jobs) == 5


def test_a_device_agrees_with_itself():
    device = open_device("emulator")
    case = quick_cases(SMALL)[0]
    first, second = (output_of(device, SMALL, case) for _ in range(2))
    assert ulps_apart(first, second, DType.BF16) == 0


def test_distance_counts_ulps_of_the_rows_largest_output():
    row = np.array([[0x3F80, 0x3C00]], np.uint16)  # 1.0 and 2^-7 as bfloat16
    one_up = np.array([[0x3F81, 0x3C00]], np.uint16)
    assert ulps_apart(row, one_up, DType.BF16) == 1
    small_moved = np.array([[0x3F80, 0x3C80]], np.uint16)  # 2^-7 became 2^-6: 2^-7 apart
    assert ulps_apart(row, small_moved, DType.BF16) == 1
    assert ulps_apart(row, np.array([[0x7FC0, 0x3C00]], np.uint16), DType.BF16) == np.inf
