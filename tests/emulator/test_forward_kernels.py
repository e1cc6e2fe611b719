"""Whole forward kernels are right in every dialect and schedule; counters tell their layout."""

import pytest

from flashsmith.check.cases import quick_cases
from flashsmith.check.verdict import check_case
from flashsmith.compile.compiler import compile_ptx
from flashsmith.emulator.options import EmulatorOptions
from flashsmith.emulator.program import load
from flashsmith.kernels.parse import parse_config
from flashsmith.problem.needs import Needs
from flashsmith.runtime.emulated import EmulatedDevice

SMALL = "(BF16, 64, 64, 32, 4): async+eager+swizzled+load_2_2_2_tiles+buffer"


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_100a"])
def test_the_text_for_every_architecture_computes_attention(arch):
    config = parse_config(SMALL)
    for case in quick_cases(config):
        verdict = check_case(EmulatedDevice(arch), config, case)
        assert verdict.ok, verdict


@pytest.mark.parametrize("seed", range(3))
def test_random_schedules_find_nothing_wrong_with_a_right_kernel(seed):
    config = parse_config(SMALL)
    options = EmulatorOptions(seed=seed, delayed_landing=True)
    verdict = check_case(EmulatedDevice(options=options), config, quick_cases(config)[1])
    assert verdict.ok, verdict


@pytest.mark.parametrize(
    ("short_form", "extra"),
    [
        ("(FP16, 128, 64, 64, 4): async+swizzled+load_0_0_0_tiles", 0),
        ("(FP16, 128, 64, 64, 4): async+load_0_0_0_tiles", 7),
    ],
)
def test_ldmatrix_conflicts_eight_ways_without_the_swizzle_and_never_with_it(short_form, extra):
    config = parse_config(short_form)
    device = EmulatedDevice(options=EmulatorOptions(counters=True))
    case = quick_cases(config)[0]
    assert check_case(device, config, case).ok
    counters = device.report().counters
    traits = Needs(("ragged_q", "ragged_k", "lse"))
    kernel = load(compile_ptx(config, traits, device.arch).ptx).kernel
    lines = {i.line for i in kernel.instructions if i.opcode == "ldmatrix"}
    counts = [count for line, count in counters.shared.items() if line in lines]
    assert sum(count.phases for count in counts) > 1000
    assert all(count.extra == extra * count.phases for count in counts)


def test_copies_of_whole_rows_touch_each_sector_once():
    config = parse_config("(FP16, 128, 64, 64, 4): async+swizzled+load_0_0_0_tiles")
    device = EmulatedDevice(options=EmulatorOptions(counters=True))
    assert check_case(device, config, quick_cases(config)[0]).ok
    counters = device.report().counters
    loaded = counters.bytes["global load"]
    assert 32 * sum(counters.sectors.values()) < 1.2 * (loaded + counters.bytes["global store"])
    assert counters.instructions["mma"] > 0
    assert counters.barrier_arrivals > 0
