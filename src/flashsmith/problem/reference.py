"""The truth: attention in float64, straight from the definition, to compare outputs with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flashsmith.base.errors import ArgumentError
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.signature import FORWARD, TensorRole

F64 = NDArray[np.float64]


def reference(problem: AttentionProblem, inputs: Mapping[str, NDArray[Any]]) -> dict[str, F64]:
    """Every output, by name, from numbers (not bits) in the problem's layout.

    `o` has the problem's layout, `lse` (natural logarithm) is (batch, heads, q_len). A row that
    sees no key has output 0 and LSE -inf.
    """
    q, k, v = (_heads_first(problem, role, inputs[role.name]) for role in FORWARD.inputs(problem))
    shape = (problem.batch, problem.heads, problem.q_len)
    o: F64 = np.zeros((*shape, problem.d_head))
    lse: F64 = np.full(shape, -np.inf)
    mask = problem.mask.visible()
    for b in range(problem.batch):
        for h in range(problem.heads):
            kv = h // problem.group
            o[b, h], lse[b, h] = _one_head(q[b, h], k[b, kv], v[b, kv], mask, problem)
    return {"o": _problem_layout(problem, o), "lse": lse}


def score(problem: AttentionProblem, products: NDArray[Any]) -> NDArray[Any]:
    """What the softmax takes, of Q Kᵀ: in whatever precision the products are."""
    x = products * products.dtype.type(problem.softmax_scale)
    return np.asarray(x)


def _one_head(
    q: F64, k: F64, v: F64, mask: NDArray[np.bool_], problem: AttentionProblem
) -> tuple[F64, NDArray[Any]]:
    if not k.shape[0]:
        return np.zeros_like(q), np.full(q.shape[0], -np.inf)
    scores = np.where(mask, score(problem, q @ k.T), -np.inf)
    row_max = scores.max(axis=1, keepdims=True)
    # A row without a visible key has maximum -inf; 0 in its place makes every weight exactly 0.
    weights = np.exp(scores - np.where(np.isneginf(row_max), 0.0, row_max))
    total = weights.sum(axis=1, keepdims=True)
    o = weights @ v / np.where(total == 0.0, 1.0, total)
    with np.errstate(divide="ignore"):
        return o, (np.log(total) + row_max)[:, 0]


def _heads_first(problem: AttentionProblem, role: TensorRole, array: NDArray[Any]) -> F64:
    """The array as float64 of shape (batch, heads, length, d_head)."""
    wanted = role.shape(problem)
    if array.shape != wanted:
        raise ArgumentError(
            f"{role.name} has shape {array.shape}; the problem needs {wanted} ({problem.layout}); "
            f"change one of them."
        )
    numbers = np.asarray(array, dtype=np.float64)
    return numbers.transpose(0, 2, 1, 3) if problem.layout == "bshd" else numbers


def _problem_layout(problem: AttentionProblem, o: F64) -> F64:
    return np.ascontiguousarray(o.transpose(0, 2, 1, 3)) if problem.layout == "bshd" else o
