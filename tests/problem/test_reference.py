"""The float64 truth: against the definition, one number at a time, and against torch."""

import math

import numpy as np
import pytest

from flashsmith.base.errors import ArgumentError
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.reference import reference

SHAPES = [
    {"q_len": 7, "k_len": 7},
    {"q_len": 5, "k_len": 11},
    {"q_len": 11, "k_len": 5},
]
MASKS = [
    {"causal": False},
    {"causal": True},  # bottom-right
    {"causal": True, "diagonal": 0},  # top-left
    {"causal": True, "diagonal": -3},
]


def make(layout="bshd", heads=6, kv_heads=3, d_head=8, seed=0, **changes):
    problem = AttentionProblem(
        batch=2, heads=heads, kv_heads=kv_heads, d_head=d_head, layout=layout, **changes
    )
    rng = np.random.default_rng(seed)

    def tensor(n_heads, length):
        shape = (2, length, n_heads, d_head) if layout == "bshd" else (2, n_heads, length, d_head)
        return rng.normal(size=shape)

    return (
        problem,
        tensor(heads, problem.q_len),
        tensor(kv_heads, problem.k_len),
        tensor(kv_heads, problem.k_len),
    )


def truth_of(problem, q, k, v):
    found = reference(problem, {"q": q, "k": k, "v": v})
    return found["o"], found["lse"]


def by_definition(problem, q, k, v, b, h, i):
    """One row of one head, one number at a time."""
    kv = h // (problem.heads // problem.kv_heads)
    offset = problem.k_len - problem.q_len if problem.diagonal is None else problem.diagonal
    seen = [j for j in range(problem.k_len) if not problem.causal or j <= i + offset]
    scores = [problem.softmax_scale * float(np.dot(q[b, i, h], k[b, j, kv])) for j in seen]
    if not seen:
        return np.zeros(problem.d_head), -math.inf
    total = sum(math.exp(score) for score in scores)
    row = sum(math.exp(s) / total * v[b, j, kv] for s, j in zip(scores, seen, strict=True))
    return row, math.log(total)


@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_truth_is_the_definition_row_by_row(shape, mask):
    problem, q, k, v = make(**shape, **mask)
    o, lse = truth_of(problem, q, k, v)
    for h in (0, 1, 5):
        for i in range(problem.q_len):
            row, row_lse = by_definition(problem, q, k, v, 1, h, i)
            np.testing.assert_allclose(o[1, i, h], row, atol=1e-14)
            assert lse[1, h, i] == pytest.approx(row_lse, abs=1e-13)


def test_a_row_that_sees_no_key_is_zero_with_lse_minus_infinity():
    problem, q, k, v = make(q_len=11, k_len=5, causal=True)
    o, lse = truth_of(problem, q, k, v)
    assert (o[:, :6] == 0).all()
    assert np.isneginf(lse[:, :, :6]).all()
    assert np.isfinite(lse[:, :, 6:]).all()


def test_no_keys_at_all_give_zero():
    problem, q, k, v = make(q_len=5, k_len=0)
    o, lse = truth_of(problem, q, k, v)
    assert o.shape == q.shape
    assert not o.any()
    assert np.isneginf(lse).all()


def test_both_alignments_of_the_causal_mask():
    bottom_right = AttentionProblem(1, 1, 1, 2, 4, 8, causal=True).mask.visible()
    top_left = AttentionProblem(1, 1, 1, 2, 4, 8, causal=True, diagonal=0).mask.visible()
    assert bottom_right.tolist() == [[True, True, True, False], [True] * 4]
    assert top_left.tolist() == [[True, False, False, False], [True, True, False, False]]


def test_the_layouts_differ_by_a_transposition_only():
    problem, q, k, v = make(q_len=5, k_len=11)
    other, *_ = make("bhsd", q_len=5, k_len=11)
    o, lse = truth_of(problem, q, k, v)
    o_t, lse_t = truth_of(other, *(x.transpose(0, 2, 1, 3) for x in (q, k, v)))
    assert (o == o_t.transpose(0, 2, 1, 3)).all()
    assert (lse == lse_t).all()


def test_a_large_score_does_not_overflow():
    problem, q, k, v = make(q_len=5, k_len=7, scale=1e4)
    o, lse = truth_of(problem, q, k, v)
    assert np.isfinite(o).all()
    assert np.isfinite(lse).all()


def test_torch_agrees_where_it_computes_the_same():
    torch = pytest.importorskip("torch")
    problem, q, k, v = make("bhsd", q_len=11, k_len=11, causal=True, scale=0.3)
    o, _ = truth_of(problem, q, k, v)
    theirs = torch.nn.functional.scaled_dot_product_attention(
        *(torch.from_numpy(x) for x in (q, k, v)), is_causal=True, scale=0.3, enable_gqa=True
    )
    np.testing.assert_allclose(o, theirs.numpy(), atol=1e-13)


def test_an_array_of_another_shape_is_refused_by_name():
    problem, q, _, v = make(q_len=5, k_len=7)
    with pytest.raises(ArgumentError, match=r"k has shape \(2, 5, 6, 8\); the problem needs"):
        truth_of(problem, q, q, v)
