"""A problem: defaults that follow from its shape, and values that cannot be."""

import random

import pytest

from flashsmith.base.errors import ArgumentError
from flashsmith.problem.attention import AttentionProblem

SHAPE = {"batch": 1, "heads": 6, "kv_heads": 3, "q_len": 5, "k_len": 9, "d_head": 64}


def test_the_scale_is_one_over_the_root_of_d_head_unless_given():
    assert AttentionProblem(**SHAPE).softmax_scale == 0.125
    assert AttentionProblem(**SHAPE, scale=0.5).softmax_scale == 0.5


def test_the_diagonal_is_bottom_right_unless_given():
    assert AttentionProblem(**SHAPE, causal=True).mask.diagonal == 4
    assert AttentionProblem(**SHAPE, causal=True, diagonal=0).mask.diagonal == 0


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"batch": -1}, "batch is -1; it must be an integer of at least 0"),
        ({"q_len": 2.0}, "q_len is 2.0; it must be an integer"),
        ({"heads": True}, "heads is True; it must be an integer"),
        ({"heads": 5}, "heads is 5 and kv_heads is 3; .*must be a multiple"),
        ({"layout": "sbhd"}, "layout is 'sbhd'; it must be 'bshd' .* or 'bhsd' "),
        ({"dtype": 5}, r"dtype is 5; it must be DType\.FP16 or DType\.BF16"),
        ({"diagonal": 0.5, "causal": True}, "diagonal is 0.5; it must be an integer or None"),
        ({"scale": 0.0}, "scale is 0; it must be a finite number above 0"),
        ({"scale": float("inf")}, "scale is inf"),
        ({"scale": 1e39}, r"scale is 1e\+39; kernels take it as float32, from 1.175e-38 to 3.403e"),
        ({"scale": 1e-39}, "scale is 1e-39; kernels take it as float32"),
        ({"scale": 10**5000}, "scale is an integer of 16,610 bits; kernels take it as float32"),
        ({"q_len": 2**31}, "q_len is 2147483648; kernels count in 32 bits, up to 2,147,483,647"),
        ({"k_len": 10**5000}, "k_len is an integer of 16,610 bits; kernels count in 32 bits"),
    ],
)
def test_a_value_that_cannot_be_is_refused_by_name(changes, says):
    with pytest.raises(ArgumentError, match=says):
        AttentionProblem(**(SHAPE | changes))


def test_problems_have_an_order_whatever_facts_they_lack():
    facts = ({}, {"scale": 0.5}, {"scale": 2.0}, {"causal": True, "diagonal": 3}, {"softcap": 1.0})
    problems = [AttentionProblem(**(SHAPE | given)) for given in facts]
    mixed = random.Random(23).sample(problems, len(problems))
    assert sorted(mixed) == sorted(problems)
    assert sorted(mixed)[0] == problems[0]
    assert not problems[0] < problems[0]
