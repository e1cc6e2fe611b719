"""The truth: attention in float64, straight from the definition, to compare outputs with."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flashsmith.base.errors import ArgumentError
from flashsmith.problem.attention import AttentionProblem

F64 = NDArray[np.float64]


class Reference(NamedTuple):
    """Output in the problem's layout, and natural log-sum-exp of shape (batch, heads, q_len)."""

    o: F64
    lse: F64


def visible(problem: AttentionProblem) -> NDArray[np.bool_]:
    """Which keys each query row sees, of shape (q_len, k_len)."""
    if not problem.causal:
        return np.ones((problem.q_len, problem.k_len), dtype=np.bool_)
    rows = np.arange(problem.q_len)[:, None]
    return np.asarray(np.arange(problem.k_len)[None, :] <= rows + problem.diagonal_offset)


def reference_attention(
    problem: AttentionProblem, q: NDArray[Any], k: NDArray[Any], v: NDArray[Any]
) -> Reference:
    """O and LSE of numbers (not bits) in the problem's layout.

    A row that sees no key has output 0 and LSE -inf.
    """
    q, k, v = (_heads_first(problem, name, array) for name, array in (("q", q), ("k", k), ("v", v)))
    shape = (problem.batch, problem.heads, problem.q_len)
    o: F64 = np.zeros((*shape, problem.d_head))
    lse: F64 = np.full(shape, -np.inf)
    mask = visible(problem)
    group = problem.heads // problem.kv_heads if problem.kv_heads else 1
    for b in range(problem.batch):
        for h in range(problem.heads):
            kv = h // group
            o[b, h], lse[b, h] = _one_head(q[b, h], k[b, kv], v[b, kv], mask, problem.softmax_scale)
    return Reference(_problem_layout(problem, o), lse)


def _one_head(
    q: F64, k: F64, v: F64, mask: NDArray[np.bool_], scale: float
) -> tuple[F64, NDArray[Any]]:
    if not k.shape[0]:
        return np.zeros_like(q), np.full(q.shape[0], -np.inf)
    scores = np.where(mask, scale * (q @ k.T), -np.inf)
    row_max = scores.max(axis=1, keepdims=True)
    # A row without a visible key has maximum -inf; 0 in its place makes every weight exactly 0.
    weights = np.exp(scores - np.where(np.isneginf(row_max), 0.0, row_max))
    total = weights.sum(axis=1, keepdims=True)
    o = weights @ v / np.where(total == 0.0, 1.0, total)
    with np.errstate(divide="ignore"):
        return o, (np.log(total) + row_max)[:, 0]


def _heads_first(problem: AttentionProblem, name: str, array: NDArray[Any]) -> F64:
    """The array as float64 of shape (batch, heads, length, d_head)."""
    heads = problem.heads if name == "q" else problem.kv_heads
    length = problem.q_len if name == "q" else problem.k_len
    wanted = shape_in_layout(problem, heads, length)
    if array.shape != wanted:
        raise ArgumentError(
            f"{name} has shape {array.shape}; the problem needs {wanted} ({problem.layout}); "
            f"change one of them."
        )
    numbers = np.asarray(array, dtype=np.float64)
    return numbers.transpose(0, 2, 1, 3) if problem.layout == "bshd" else numbers


def shape_in_layout(
    problem: AttentionProblem, heads: int, length: int
) -> tuple[int, int, int, int]:
    """The shape of a tensor of `heads` and `length` in the problem's layout."""
    if problem.layout == "bshd":
        return (problem.batch, length, heads, problem.d_head)
    return (problem.batch, heads, length, problem.d_head)


def _problem_layout(problem: AttentionProblem, o: F64) -> F64:
    return np.ascontiguousarray(o.transpose(0, 2, 1, 3)) if problem.layout == "bshd" else o
