"""Interleaved timing on a GPU: rounds, regimes, captures; no time is asserted."""

import numpy as np
import pytest

from flashsmith.base.dtypes import DType
from flashsmith.base.errors import ArgumentError
from flashsmith.kernels import resolve_key
from flashsmith.measure import interleaved
from flashsmith.measure.interleaved import (
    ATTEMPTS,
    TIMED_A_LOAD,
    Comparison,
    Contender,
    compare,
    turns,
)
from flashsmith.measure.statistics import summarize
from flashsmith.measure.timed_configs import random_inputs, time_configs
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.signature import signature_of
from flashsmith.runtime.devices import default_device

PROBLEM = AttentionProblem(1, 3, 3, 200, 200, 128, DType.FP16)


def test_random_inputs_have_the_problems_shapes_and_repeat_by_seed():
    inputs = random_inputs(PROBLEM, seed=4)
    assert {name: array.shape for name, array in inputs.items()} == {
        role.name: role.shape(PROBLEM) for role in signature_of(PROBLEM).inputs(PROBLEM)
    }
    np.testing.assert_array_equal(inputs["q"], random_inputs(PROBLEM, seed=4)["q"])
    assert not np.array_equal(inputs["q"], inputs["k"])


def test_too_few_rounds_or_no_contender_are_refused():
    for contenders, rounds in (((), 21), ((Contender("a", print),), 14)):
        with pytest.raises(ArgumentError, match="at least 1 and 15 are needed"):
            compare(None, contenders, rounds=rounds)


@pytest.mark.parametrize(
    ("controls", "rounds", "is_void"),
    [
        ([1.001], [15], False),
        ([1.02, 0.999], [15, 30], False),
        ([1.02, 0.98, 1.011, 1.0], [15, 30, 45], True),
    ],
)
def test_a_void_run_is_taken_again_with_more_rounds_and_not_for_ever(
    monkeypatch, controls, rounds, is_void
):
    asked = []

    def once(device, contenders, rounds, regime, timed_a_load):
        asked.append(rounds)
        return Comparison(regime, (), summarize([controls[len(asked) - 1]]), ())

    monkeypatch.setattr(interleaved, "_compare_once", once)
    found = compare(None, [Contender("a", print)], rounds=15)
    assert asked == rounds
    assert (found.is_void, found.attempts) == (is_void, len(rounds))
    assert found.attempts <= ATTEMPTS
    asked.clear()
    assert compare(None, [Contender("a", print)], rounds=15, attempts=1).attempts == len(asked) == 1


def test_one_load_serves_several_rounds_and_every_round_is_timed():
    assert [count for _, count in turns(4, 21, 1)] == [1] * 21
    sustained = list(turns(4, 17, TIMED_A_LOAD))
    assert [count for _, count in sustained] == [TIMED_A_LOAD] * 3 + [2]
    assert [order[0] for order, _ in sustained] == [0, 1, 2, 3]


@pytest.mark.gpu
@pytest.mark.parametrize("regime", ["burst", "sustained"])
def test_configurations_are_timed_side_by_side(regime):
    configs = [c for c in resolve_key("smoke") if (c.dtype, c.d_head) == (DType.FP16, 128)]
    run = time_configs(default_device("cuda"), configs, PROBLEM, rounds=15, regime=regime)
    assert [timed.name for timed in run.timed] == [config.short_form() for config in configs]
    assert run.timed[0].ratio.median == 1
    rounds = 15 * run.attempts
    assert all(timed.time_us.rounds == rounds for timed in run.timed)
    assert all(timed.time_us.median > 0 for timed in run.timed)
    assert len(run.states) == 1 + rounds // (TIMED_A_LOAD if regime == "sustained" else 1)


@pytest.mark.gpu
def test_a_contender_that_replays_its_own_graph_is_not_captured_again():
    device = default_device("cuda")
    address = device.allocate(1 << 20)
    calls = []

    def launch(stream):
        calls.append(stream)
        device.fill(address, 1, 1 << 18, stream=stream)

    captured = Contender("own graph", launch, is_captured=True)
    compare(device, [captured], rounds=15)
    direct = len(calls)
    calls.clear()
    compare(device, [Contender("captured", launch)], rounds=15)
    assert direct >= 2 * 15 > len(calls)
    device.free(address)
