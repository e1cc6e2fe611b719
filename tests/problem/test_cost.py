"""Cost in one convention: half for causal self-attention, and near the counted pairs elsewhere."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashsmith.base.dtypes import DType
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.cost import cost_of


def test_flops_are_two_products_of_two_operations_each():
    problem = AttentionProblem(2, 3, 3, 100, 200, 64)
    assert cost_of(problem).flops == 4 * 2 * 3 * 100 * 200 * 64


def test_causal_self_attention_is_exactly_half():
    full = AttentionProblem(1, 3, 3, 300, 300, 64)
    causal = AttentionProblem(1, 3, 3, 300, 300, 64, causal=True)
    assert cost_of(causal).flops == cost_of(full).flops / 2


def test_bytes_are_each_tensor_once_and_grouped_heads_share_k_and_v():
    problem = AttentionProblem(2, 6, 2, 10, 20, 64, dtype=DType.FP16, lse=True)
    cost = cost_of(problem)
    assert cost.read_bytes == 2 * (2 * 6 * 10 * 64 + 2 * 2 * 2 * 20 * 64)
    assert cost.written_bytes == 2 * 2 * 6 * 10 * 64 + 4 * 2 * 6 * 10
    assert cost.flop_per_byte == cost.flops / cost.total_bytes


def test_throughput_is_operations_over_seconds():
    cost = cost_of(AttentionProblem(1, 16, 16, 4096, 4096, 128))
    assert cost.tflops(1e-3) == pytest.approx(cost.flops / 1e9)


def test_an_empty_problem_costs_nothing():
    cost = cost_of(AttentionProblem(0, 4, 4, 10, 10, 64))
    assert (cost.flops, cost.total_bytes, cost.flop_per_byte) == (0.0, 0, 0.0)


lengths = st.integers(0, 40)


@given(lengths, lengths, st.one_of(st.none(), st.integers(-50, 50)))
def test_pairs_are_those_of_the_mask_and_the_area_is_within_half_a_diagonal(q_len, k_len, diagonal):
    problem = AttentionProblem(1, 1, 1, q_len, k_len, 64, causal=True, diagonal=diagonal)
    mask = problem.mask
    assert mask.pairs == mask.visible().sum()
    assert 0 <= mask.pairs - mask.area <= min(q_len, k_len) / 2
