"""Shared options: what they mean together."""

import pytest

from flashsmith import DType
from flashsmith.base.errors import ArgumentError
from flashsmith.cli.options import configs_of, problem_of

GIVEN = {
    "batch": 2,
    "heads": 6,
    "kv_heads": None,
    "q_len": 100,
    "k_len": None,
    "d_head": 64,
    "dtype": DType.FP16,
    "facts": {},
}


def test_key_heads_and_key_length_follow_the_query_unless_given():
    problem = problem_of(**GIVEN)
    assert (problem.kv_heads, problem.k_len) == (6, 100)
    other = problem_of(**GIVEN | {"kv_heads": 3, "k_len": 7})
    assert (other.kv_heads, other.k_len) == (3, 7)


def test_a_diagonal_needs_a_causal_mask():
    with pytest.raises(ArgumentError, match="--diagonal is 0 without --causal"):
        problem_of(**GIVEN | {"facts": {"diagonal": 0}})
    assert problem_of(**GIVEN | {"facts": {"diagonal": 0, "causal": True}}).mask.diagonal == 0


def test_a_key_goes_before_kernels_and_kernels_before_the_default(monkeypatch):
    monkeypatch.setenv("KERNELS", "64,64")
    assert len(configs_of("prog", "tune")) == 7
    assert len(configs_of(None, "tune")) == 32
    monkeypatch.delenv("KERNELS")
    assert len(configs_of(None, "tune")) == 80
