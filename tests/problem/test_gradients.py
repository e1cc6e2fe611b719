"""The truth of gradients: against differences of the forward pass, and against torch."""

from dataclasses import replace

import numpy as np
import pytest

from flashsmith.base.errors import ArgumentError
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.cost import cost_of
from flashsmith.problem.reference import reference
from flashsmith.problem.signature import BACKWARD, FORWARD, signature_of
from flashsmith.problem.text import problem_fields, problem_from_fields, problem_text

SHAPES = [(7, 7), (5, 11), (11, 5), (3, 1)]
MASKS = [
    {},
    {"causal": True},
    {"causal": True, "diagonal": 0},
    {"window_left": 2, "window_right": 1},
    {"softcap": 0.7},
]
PROBLEM = AttentionProblem(2, 6, 3, 11, 7, 8, operation="backward")


def numbers(problem, seed=0):
    random = np.random.default_rng(seed)
    forward = replace(problem, operation="forward")
    roles = [*FORWARD.inputs(forward), BACKWARD.tensors[5]]
    return {role.name: random.normal(size=role.shape(problem)) for role in roles}


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.parametrize("lengths", SHAPES, ids=str)
def test_gradients_are_the_slopes_of_the_forward_pass(lengths, mask, layout):
    q_len, k_len = lengths
    problem = replace(PROBLEM, q_len=q_len, k_len=k_len, layout=layout, **mask)
    forward = replace(problem, operation="forward")
    given = numbers(problem)
    found = reference(problem, given)
    random = np.random.default_rng(1)
    for name in "qkv":
        along = random.normal(size=given[name].shape)
        ends = [
            reference(forward, {**given, name: given[name] + step * along})["o"]
            for step in (1e-5, -1e-5)
        ]
        slope = ((ends[0] - ends[1]) * given["do"]).sum() / 2e-5
        assert (found[f"d{name}"] * along).sum() == pytest.approx(slope, rel=1e-6, abs=1e-6)


def test_a_gradient_of_the_log_sum_exp_adds_to_that_of_the_scores():
    problem = replace(PROBLEM, dlse=True)
    forward = replace(PROBLEM, operation="forward", lse=True)
    given = numbers(PROBLEM)
    random = np.random.default_rng(2)
    given["dlse"] = random.normal(size=(2, 6, 11))
    found = reference(problem, given)
    for name in "qk":
        along = random.normal(size=given[name].shape)
        ends = [
            reference(forward, {**given, name: given[name] + step * along})
            for step in (1e-5, -1e-5)
        ]
        slope = sum(
            ((ends[0][of] - ends[1][of]) * given[f"d{of}"]).sum() / 2e-5 for of in ("o", "lse")
        )
        assert (found[f"d{name}"] * along).sum() == pytest.approx(slope, rel=1e-6, abs=1e-6)


def test_rows_that_see_no_key_have_gradient_zero_and_add_nothing():
    problem = replace(PROBLEM, causal=True)  # the first four rows see nothing
    given = numbers(problem)
    found = reference(problem, given)
    assert not found["dq"][:, :4].any()
    assert all(np.isfinite(array).all() for array in found.values())
    other = {**given, "do": given["do"].copy()}
    other["do"][:, :4] += 1
    again = reference(problem, other)
    assert all((found[name] == again[name]).all() for name in found)


def test_heads_of_a_group_add_up():
    given = numbers(PROBLEM)
    alone = replace(PROBLEM, kv_heads=6)
    spread = {n: x.repeat(2, axis=2) if n in "kv" else x for n, x in given.items()}
    found, apart = reference(PROBLEM, given), reference(alone, spread)
    for name in ("dk", "dv"):
        summed = apart[name].reshape(2, 7, 3, 2, 8).sum(axis=3)
        np.testing.assert_allclose(found[name], summed, atol=1e-14)


def test_torch_agrees_where_it_computes_the_same():
    torch = pytest.importorskip("torch")
    problem = replace(PROBLEM, q_len=9, k_len=9, layout="bhsd", causal=True, scale=0.3)
    given = numbers(problem)
    q, k, v = (torch.tensor(given[name], requires_grad=True) for name in "qkv")
    o = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, is_causal=True, scale=0.3, enable_gqa=True
    )
    o.backward(torch.tensor(given["do"]))
    found = reference(problem, given)
    for name, tensor in (("dq", q), ("dk", k), ("dv", v)):
        np.testing.assert_allclose(found[name], tensor.grad.numpy(), atol=1e-13)


def test_what_is_given_of_the_forward_pass_does_not_change_the_truth():
    given = numbers(PROBLEM)
    found = reference(PROBLEM, given)
    wrong = {"o": np.full_like(given["q"], 3.0), "lse": np.zeros((2, 6, 11))}
    again = reference(PROBLEM, {**given, **wrong})
    assert all((found[name] == again[name]).all() for name in ("dq", "dk", "dv"))


def test_a_backward_takes_what_a_forward_gives_and_one_gradient():
    assert [role.name for role in signature_of(PROBLEM).inputs(PROBLEM)] == [
        *("q", "k", "v", "o", "lse", "do")
    ]
    outputs = signature_of(PROBLEM).outputs(PROBLEM)
    assert [role.name for role in outputs] == ["dq", "dk", "dv"]
    assert [role.shape(PROBLEM) for role in outputs] == [(2, 11, 6, 8), (2, 7, 3, 8), (2, 7, 3, 8)]


def test_five_products_cost_two_and_a_half_times_two():
    forward = replace(PROBLEM, operation="forward")
    assert cost_of(PROBLEM).flops == 2.5 * cost_of(forward).flops
    assert cost_of(PROBLEM).written_bytes == 2 * 2 * 8 * (11 * 6 + 7 * 3 + 7 * 3)


def test_the_operation_is_written_where_it_is_not_the_forward_pass():
    forward = replace(PROBLEM, operation="forward")
    assert "operation" not in problem_fields(forward)
    assert problem_from_fields(problem_fields(PROBLEM)) == PROBLEM
    assert problem_text(PROBLEM) == f"backward, {problem_text(forward)}"
    assert "operation" not in repr(forward)
    assert repr(PROBLEM).endswith("lse=False, operation='backward')")


def test_a_backward_that_is_to_write_the_lse_is_refused():
    with pytest.raises(ArgumentError, match="takes the log-sum-exp and does not write it"):
        replace(PROBLEM, lse=True)
    with pytest.raises(ArgumentError, match="gradients belong to a backward pass"):
        replace(PROBLEM, operation="forward", dlse=True)
    with pytest.raises(
        ArgumentError, match=r"operation is 'sideways'; it must be 'forward' .*backward"
    ):
        replace(PROBLEM, operation="sideways")
