"""The truth: attention and its gradients in float64, straight from the definition."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flashsmith.base.errors import ArgumentError
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.signature import TensorRole, signature_of

F64 = NDArray[np.float64]
Arrays = Mapping[str, NDArray[Any]]


def reference(problem: AttentionProblem, inputs: Arrays) -> dict[str, F64]:
    """Every output, by name, from numbers (not bits) in the problem's layout.

    Rows of elements have the problem's layout; `lse` (natural logarithm) is (batch, heads, q_len).
    A row that sees no key has output 0, LSE -inf and gradient 0. Gradients are those of the exact
    function: they follow from q, k, v, do and dlse, whatever o and lse were given.
    """
    roles = {role.name: role for role in signature_of(problem).of(problem)}
    given = {
        name: _heads_first(problem, roles[name], array)
        for name, array in inputs.items()
        if name in roles
    }
    found = _OPERATIONS[problem.operation](problem, given)
    return {
        name: array if array.ndim == 3 else _problem_layout(problem, array)
        for name, array in found.items()
    }


def score(problem: AttentionProblem, products: NDArray[Any]) -> NDArray[Any]:
    """What the softmax takes, of Q Kᵀ: in whatever precision the products are."""
    x = products * products.dtype.type(problem.softmax_scale)
    return np.asarray(x)


@dataclass(frozen=True, slots=True)
class HeadGradients:
    """What lies between one query head's inputs and its gradients: matrices of q_len x k_len."""

    p: F64  # the softmax
    ds: F64  # gradient of the scores


def head_gradients(
    problem: AttentionProblem, one: Mapping[str, F64], mask: NDArray[np.bool_]
) -> HeadGradients:
    """P and dS of one query head, from its tensors by name; 0 in rows that see no key."""
    q, k, v, do = one["q"], one["k"], one["v"], one["do"]
    o, lse = _one_head(q, k, v, mask, problem)
    with np.errstate(invalid="ignore"):  # -inf - -inf, in rows that see no key
        p = np.where(mask, np.exp(score(problem, q @ k.T) - lse[:, None]), 0.0)
    delta = (do * o).sum(axis=1)
    if problem.dlse:
        delta = delta - one["dlse"]
    return HeadGradients(p, p * (do @ v.T - delta[:, None]))


def _forward(problem: AttentionProblem, given: Mapping[str, F64]) -> dict[str, F64]:
    q, k, v = given["q"], given["k"], given["v"]
    shape = (problem.batch, problem.heads, problem.q_len)
    o: F64 = np.zeros((*shape, problem.d_head))
    lse: F64 = np.full(shape, -np.inf)
    mask = problem.mask.visible()
    for b in range(problem.batch):
        for h in range(problem.heads):
            kv = h // problem.group
            o[b, h], lse[b, h] = _one_head(q[b, h], k[b, kv], v[b, kv], mask, problem)
    return {"o": o, "lse": lse}


def _backward(problem: AttentionProblem, given: Mapping[str, F64]) -> dict[str, F64]:
    dq, dk, dv = (np.zeros_like(given[name]) for name in "qkv")
    mask, scale = problem.mask.visible(), problem.softmax_scale
    for b in range(problem.batch):
        for h in range(problem.heads if problem.k_len else 0):
            kv = h // problem.group
            one = {n: array[b, kv if n in ("k", "v") else h] for n, array in given.items()}
            head = head_gradients(problem, one, mask)
            dq[b, h] = head.ds @ one["k"] * scale
            dk[b, kv] += head.ds.T @ one["q"] * scale
            dv[b, kv] += head.p.T @ one["do"]
    return {"dq": dq, "dk": dk, "dv": dv}


_OPERATIONS: dict[str, Callable[[AttentionProblem, Mapping[str, F64]], dict[str, F64]]] = {
    "forward": _forward,
    "backward": _backward,
}


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
    """The array as float64 of shape (batch, heads, length, d_head), or without the last."""
    wanted = role.shape(problem)
    if array.shape != wanted:
        raise ArgumentError(
            f"{role.name} has shape {array.shape}; the problem needs {wanted} ({problem.layout}); "
            f"change one of them."
        )
    numbers = np.asarray(array, dtype=np.float64)
    is_by_row = problem.layout == "bshd" and not role.is_statistics
    return numbers.transpose(0, 2, 1, 3) if is_by_row else numbers


def _problem_layout(problem: AttentionProblem, o: F64) -> F64:
    return np.ascontiguousarray(o.transpose(0, 2, 1, 3)) if problem.layout == "bshd" else o
