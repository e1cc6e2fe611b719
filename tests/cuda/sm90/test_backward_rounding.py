"""dQ rounded by the warps that multiply: the bits of a launch of its own, without that launch."""

from dataclasses import replace

import pytest

from flashsmith.base.dtypes import DType
from flashsmith.check.cases import Case, inputs_of, quick_cases
from flashsmith.check.verdict import check_case
from flashsmith.emulator.options import EmulatorOptions
from flashsmith.kernels import parse_config
from flashsmith.kernels.plans import plan
from flashsmith.problem.attention import AttentionProblem
from flashsmith.runtime.emulated import EmulatedDevice
from flashsmith.runtime.run import run_arrays

ALL = "turns+fold+early_dv+late_fences"
LONG = parse_config(f"hopper_bwd(BF16, 128): ds_3+{ALL}+adders_3+section_20+rounds_dq")
RISING = replace(LONG, masks_first=True, early_polls=True, rising=True, section_mb=10)
SLIM = parse_config(f"hopper_bwd(FP16, 64): ds_2+{ALL}+heads_inner+rounds_dq")


def problem(config, q_len, k_len, **more):
    given = {"heads": 2, "kv_heads": 2, "d_head": config.d_head, **more}
    return AttentionProblem(
        batch=1, q_len=q_len, k_len=k_len, dtype=config.dtype, operation="backward", **given
    )


@pytest.mark.parametrize("config", [LONG, RISING, SLIM], ids=str)
def test_the_quick_cases_are_right(device, config):
    for case in quick_cases(config):
        check_case(device, config, case).require_ok(config.short_form())


@pytest.mark.parametrize(
    ("config", "lengths", "facts"),
    [
        # More q tiles than kv blocks, and fewer.
        (LONG, (330, 100), {"heads": 4, "kv_heads": 1}),
        (SLIM, (70, 400), {"d_head": 40}),
        (LONG, (200, 300), {"window_left": 70, "window_right": 30}),
        (replace(LONG, fold=False), (150, 200), {"causal": True, "softcap": 1.5}),
        (SLIM, (150, 200), {"causal": True, "alibi": True, "diagonal": -90}),
        (RISING, (260, 388), {"causal": True, "diagonal": 128, "heads": 4, "kv_heads": 4}),
    ],
    ids=str,
)
def test_any_number_of_q_tiles_for_each_kv_block_is_rounded(device, config, lengths, facts):
    given = Case("rounded", problem(config, *lengths, **facts), placement="transposed")
    check_case(device, config, given).require_ok(config.short_form())


# Random schedules, which take seven times as long, in turn: some of each configuration, some on
# each number of SMs.
SCHEDULES = [
    (LONG, {1: 0, 7: None, 132: 2}),
    (replace(RISING, dtype=DType.FP16), {1: None, 7: 1, 132: None}),
]


@pytest.mark.parametrize(("config", "seeds"), SCHEDULES, ids=str)
def test_the_bits_are_those_of_a_launch_of_its_own_on_every_number_of_sms(config, seeds):
    given = problem(config, 200, 390, heads=3, kv_heads=3, causal=config.rising, diagonal=None)
    by_launch = replace(config, rounds_dq=False)
    seen = set()
    runs = [*((sms, config, seed) for sms, seed in seeds.items()), (3, by_launch, None)]
    for sms, one, seed in runs:
        options = EmulatorOptions(
            seed=seed, delayed_landing=seed is not None, mma_in_order=True, ordered_sums=True
        )
        device = EmulatedDevice(sm_count=sms, options=options)
        found = run_arrays(device, one, given, inputs_of(Case("bits", given)))
        seen.add(tuple(found[name].tobytes() for name in ("dq", "dk", "dv")))
    assert len(seen) == 1


def test_a_plan_has_no_launch_for_it():
    given = problem(LONG, 200, 390)
    with_it, without = (
        [launch.config.NAME for launch in plan(config, given, sm_count=4)]
        for config in (replace(LONG, rounds_dq=False), LONG)
    )
    assert with_it == [*without, "sm90_backward_dq"]
    assert [kernel.NAME for kernel in LONG.kernels()] == without
