"""The cases: every configuration meets the shapes that kernels get wrong."""

import numpy as np
import pytest

from flashsmith.check.cases import full_cases, inputs_of, quick_cases
from flashsmith.check.placement import PLACEMENTS
from flashsmith.kernels import resolve_key
from flashsmith.kernels.plans import needs_of
from flashsmith.problem.cost import cost_of

CONFIGS = resolve_key("all")


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.short_form())
def test_quick_cases_have_three_key_blocks_a_ragged_tail_and_odd_heads(config):
    cases = quick_cases(config)[:2]
    assert [case.problem.causal for case in cases] == [False, True]
    for case in cases:
        problem = case.problem
        assert problem.k_len > 3 * config.tile_k
        assert problem.k_len % config.tile_k
        assert problem.q_len % config.tile_q
        assert problem.heads % 2 == 1
        assert (problem.dtype, problem.d_head) == (config.dtype, config.d_head)
    assert cases[0].problem.k_len % config.tile_k == 1
    assert cases[1].problem.heads > cases[1].problem.kv_heads


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.short_form())
def test_the_third_quick_case_is_small_and_has_what_the_others_lack(config):
    _, causal, case = quick_cases(config)
    problem = case.problem
    assert problem.batch == 2
    assert problem.mask.diagonal < 0  # the first rows see no key
    assert problem.k_len % config.tile_k == 1
    assert problem.k_len > config.tile_k  # scores of a first block are scaled down by a second
    assert case.gain == 30
    assert needs_of(config, problem) == needs_of(config, causal.problem)  # nothing is compiled
    assert cost_of(problem).flops < cost_of(causal.problem).flops


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.short_form())
def test_full_cases_cover_what_goes_wrong(config):
    cases = {case.name: case for case in full_cases(config)}
    problems = [case.problem for case in cases.values()]
    assert len(cases) == 12
    assert {problem.d_head for problem in problems} == {
        config.d_head,
        config.d_head // 2,
        config.d_head // 2 + 8,
    }
    assert 1 in {p.q_len for p in problems}
    assert 1 in {p.k_len for p in problems}
    assert any(p.heads == 8 * p.kv_heads for p in problems)
    assert any(p.q_len != p.k_len for p in problems)
    assert any(p.causal and p.mask.diagonal < 0 for p in problems)
    assert any(p.causal and p.diagonal == 0 for p in problems)
    assert {case.placement for case in cases.values()} == set(PLACEMENTS)
    assert any(case.gain == 30 for case in cases.values())
    assert {case.problem.lse for case in cases.values()} == {True, False}
    many_blocks = [p for p in problems if p.k_len > 3 * config.tile_k]
    assert len(many_blocks) >= 10


def test_inputs_are_the_same_for_the_same_case_and_differ_between_cases():
    first, second, _ = quick_cases(CONFIGS[0])
    again = quick_cases(CONFIGS[0])[0]
    np.testing.assert_array_equal(inputs_of(first)["q"], inputs_of(again)["q"])
    assert not np.array_equal(inputs_of(first)["q"], inputs_of(second)["q"])
