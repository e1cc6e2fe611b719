"""The ladder and the ablation: which configurations they compare, and with what reasons."""

import pytest

from flashsmith.base.errors import ArgumentError
from flashsmith.bench.ladder import ablation, changes, steps_of
from flashsmith.kernels import get_kernel_configs, parse_config
from flashsmith.measure.facts import facts_of
from flashsmith.measure.interleaved import Comparison, Timed
from flashsmith.measure.statistics import ratio_by_round, summarize

LADDER = get_kernel_configs("prog")


def comparison(times):
    timed = tuple(
        Timed(str(n), tuple(t), summarize(t), ratio_by_round(times[0], t))
        for n, t in enumerate(times)
    )
    return Comparison("burst", timed, summarize([1.0]), ())


def test_the_first_step_adds_the_swizzle_and_loses_the_conflicts():
    plain, swizzled = (facts_of(config, "sm_80") for config in LADDER[:2])
    assert changes(LADDER[0], LADDER[1]) == "swizzled: True"
    assert plain.conflicts_a_phase > 5
    assert swizzled.conflicts_a_phase == 0


def test_the_optimised_softmax_saves_instructions():
    before, after = (facts_of(config, "sm_80") for config in LADDER[4:6])
    assert after.instructions < before.instructions
    assert after.tensor_share > before.tensor_share


def test_a_gain_is_taken_round_by_round_against_the_step_before():
    facts = [None] * 3
    run = comparison([[10.0, 20.0, 10.0], [5.0, 10.0, 5.0], [5.0, 10.0, 2.5]])
    steps = steps_of(LADDER[:3], facts, run)
    assert steps[0].gain is None
    assert steps[1].gain.median == 2.0
    assert steps[2].gain.median == 1.0
    against_first = steps_of(LADDER[:3], facts, run, against_first=True)
    assert against_first[2].gain.median == 2.0


def test_an_ablation_moves_one_knob_through_what_can_be_built():
    found = ablation(LADDER[-1], "B_c")
    assert [config.B_c for config in found] == [64, 32, 128]
    assert all(config.replace(B_c=64) == LADDER[-1] for config in found)


@pytest.mark.parametrize(
    ("config", "knob", "says"),
    [
        (LADDER[0], "swizzle", "it must be one of dtype, d_head"),
        (
            parse_config("(FP16, 128, 64, 64, 4): swizzled+load_0_0_0_tiles"),
            "eager_load_blocks",
            "no other value of eager_load_blocks fits its other knobs",
        ),
    ],
)
def test_a_knob_that_cannot_be_moved_is_said(config, knob, says):
    with pytest.raises(ArgumentError, match=says):
        ablation(config, knob)
