"""The truth: attention and its gradients in float64, straight from the definition."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flashsmith.base.errors import ArgumentError
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.mask import Mask
from flashsmith.problem.sequences import SequenceOf, sequences_of, without_pages
from flashsmith.problem.signature import TABLES, TensorRole, signature_of

F64 = NDArray[np.float64]
Arrays = Mapping[str, NDArray[Any]]
OfHead = Mapping[str, Any]  # Any: a number, or of a bias a matrix; by the names of tables
# With a bias: a score below this is as good as -inf. Kernels begin with the maximum -1e30, in
# units of log2; models hide keys with the most negative number of their type.
LEAST_SCORE = -1e30 * math.log(2.0)


def reference(problem: AttentionProblem, inputs: Arrays) -> dict[str, F64]:
    """Every output, by name, from numbers (not bits) in the problem's layout.

    Rows of elements have the problem's layout; `lse` (natural logarithm) is (batch, heads, q_len).
    A row that sees no key has output 0, LSE -inf (its sink, where there is one) and gradient 0.
    Gradients are those of the exact function: they follow from q, k, v, do and dlse, whatever o and
    lse were given.
    """
    problem, inputs = without_pages(problem, inputs)
    roles = {role.name: role for role in signature_of(problem).of(problem)}
    given = {
        name: _heads_first(problem, roles[name], array)
        for name, array in inputs.items()
        if name in roles
    }
    found = _OPERATIONS[problem.operation](problem, given)
    rows = [role.name for role in signature_of(problem).tensors if role.is_rows]
    return {
        name: _problem_layout(problem, array) if name in rows else array
        for name, array in found.items()
    }


def score(
    problem: AttentionProblem, products: NDArray[Any], mask: Mask, of_head: OfHead
) -> NDArray[Any]:
    """What the softmax takes, of one head's Q Kᵀ: in whatever precision the products are."""
    number = products.dtype.type
    x = products * number(problem.softmax_scale)
    if problem.softcap is not None:
        x = number(problem.softcap) * np.tanh(x / number(problem.softcap))
    if problem.alibi:
        x = x - number(of_head["alibi_slopes"]) * mask.distances().astype(products.dtype)
    if problem.bias:
        x = _biased(problem, x, of_head["bias"])
    return np.asarray(x)


def _biased(problem: AttentionProblem, x: NDArray[Any], bias: NDArray[Any]) -> NDArray[Any]:
    """Scores with a bias of the caller's: hidden where a bool one is False, else the sum."""
    minus_infinity = x.dtype.type(-np.inf)
    if problem.bias == "bool":
        return np.asarray(np.where(bias != 0, x, minus_infinity))
    with np.errstate(invalid="ignore", over="ignore"):
        biased = x + bias.astype(x.dtype)
    return np.asarray(np.where(biased < LEAST_SCORE, minus_infinity, biased))


def score_slope(problem: AttentionProblem, products: NDArray[Any]) -> NDArray[Any]:
    """The slope of each score over its scaled product.

    Of a cap it is 1 - tanh², whose digits tanh has lost where it is near 1.
    """
    number = products.dtype.type
    if problem.softcap is None:
        return np.ones_like(products)
    share = products * number(problem.softmax_scale / problem.softcap)
    power = np.exp(number(-2.0) * np.abs(share))
    return np.asarray(number(4.0) * power / (number(1.0) + power) ** 2)


def of_head(tables: Arrays, at: SequenceOf, head: int) -> dict[str, Any]:
    """What tables hold for one head of a sequence: numbers, and of a bias the head's matrix."""
    found: dict[str, Any] = {}
    if "sinks" in tables:
        found["sinks"] = float(tables["sinks"][head])
    if "alibi_slopes" in tables:
        found["alibi_slopes"] = float(tables["alibi_slopes"][at.number, head])
    if "bias" in tables:
        found["bias"] = tables["bias"][at.batch, head]
    return found


@dataclass(frozen=True, slots=True)
class HeadGradients:
    """What lies between one query head's inputs and its gradients: matrices of q_len x k_len."""

    p: F64  # the softmax
    of_scores: F64  # gradient of what the softmax takes
    slope: F64  # of the scores over the scaled products

    @property
    def ds(self) -> F64:
        """Gradient of the scaled products."""
        return self.of_scores * self.slope


def head_gradients(
    problem: AttentionProblem, one: Mapping[str, F64], mask: Mask, numbers: OfHead
) -> HeadGradients:
    """P and dS of one query head, from its tensors by name; 0 in rows that see no key."""
    q, k, v, do = one["q"], one["k"], one["v"], one["do"]
    o, lse = _one_head(q, k, v, mask, problem, numbers)
    products, seen = q @ k.T, mask.visible()
    scores, slope = score(problem, products, mask, numbers), score_slope(problem, products)
    seen &= ~np.isneginf(scores)  # what a bias hides
    with np.errstate(invalid="ignore"):  # -inf - -inf, in rows that see no key
        p = np.where(seen, np.exp(scores - lse[:, None]), 0.0)
    delta = (do * o).sum(axis=1)
    if problem.dlse:
        delta = delta - one["dlse"]
    return HeadGradients(p, p * (do @ v.T - delta[:, None]), slope)


def _forward(problem: AttentionProblem, given: Mapping[str, F64]) -> dict[str, F64]:
    q, k, v = given["q"], given["k"], given["v"]
    shape = (problem.batch, problem.heads, problem.q_len)
    o: F64 = np.zeros((*shape, problem.v_width))
    lse: F64 = np.full(shape, -np.inf)
    for one in sequences_of(problem, given):
        b, rows, keys = one.batch, one.rows, one.keys
        for h in range(problem.heads):
            kv, numbers = h // problem.group, of_head(given, one, h)
            o[b, h, rows], lse[b, h, rows] = _one_head(
                q[b, h, rows], k[b, kv, keys], v[b, kv, keys], one.mask, problem, numbers
            )
    return {"o": o, "lse": lse}


def _backward(problem: AttentionProblem, given: Mapping[str, F64]) -> dict[str, F64]:
    dq, dk, dv = (np.zeros_like(given[name]) for name in "qkv")
    dbias = np.zeros((problem.bias_sequences, problem.bias_heads, problem.q_len, problem.k_len))
    scale = problem.softmax_scale
    for at in sequences_of(problem, given):
        b, rows, keys = at.batch, at.rows, at.keys
        for h in range(problem.heads if at.mask.k_len else 0):
            kv = h // problem.group
            one = {
                n: array[b, kv, keys] if n in ("k", "v") else array[b, h, rows]
                for n, array in given.items()
                if n not in TABLES
            }
            head = head_gradients(problem, one, at.mask, of_head(given, at, h))
            dq[b, h, rows] = head.ds @ one["k"] * scale
            dk[b, kv, keys] += head.ds.T @ one["q"] * scale
            dv[b, kv, keys] += head.p.T @ one["do"]
            if problem.dbias:
                dbias[b % len(dbias), h % dbias.shape[1]] += head.of_scores
    return {"dq": dq, "dk": dk, "dv": dv} | ({"dbias": dbias} if problem.dbias else {})


_OPERATIONS: dict[str, Callable[[AttentionProblem, Mapping[str, F64]], dict[str, F64]]] = {
    "forward": _forward,
    "backward": _backward,
}


def _one_head(
    q: F64,
    k: F64,
    v: F64,
    mask: Mask,
    problem: AttentionProblem,
    numbers: OfHead,
) -> tuple[F64, NDArray[Any]]:
    sink = numbers.get("sinks", -np.inf)
    if not k.shape[0]:
        return np.zeros((q.shape[0], v.shape[1])), np.full(q.shape[0], sink)
    scores = np.where(mask.visible(), score(problem, q @ k.T, mask, numbers), -np.inf)
    row_max = np.maximum(scores.max(axis=1, keepdims=True), sink)
    # A row without a visible key has maximum -inf; 0 in its place makes every weight exactly 0.
    shift = np.where(np.isneginf(row_max), 0.0, row_max)
    weights = np.exp(scores - shift)
    total = weights.sum(axis=1, keepdims=True) + np.exp(sink - shift)
    o = weights @ v / np.where(total == 0.0, 1.0, total)
    with np.errstate(divide="ignore"):
        return o, (np.log(total) + row_max)[:, 0]


def _heads_first(problem: AttentionProblem, role: TensorRole, array: NDArray[Any]) -> F64:
    """The array as float64; rows of elements as (batch, heads, length, d_head)."""
    wanted = role.shape(problem)
    if array.shape != wanted:
        raise ArgumentError(
            f"{role.name} has shape {array.shape}; the problem needs {wanted} ({problem.layout}); "
            f"change one of them."
        )
    numbers = np.asarray(array, dtype=np.float64)
    is_by_row = problem.layout == "bshd" and role.is_rows
    return numbers.transpose(0, 2, 1, 3) if is_by_row else numbers


def _problem_layout(problem: AttentionProblem, o: F64) -> F64:
    return np.ascontiguousarray(o.transpose(0, 2, 1, 3)) if problem.layout == "bshd" else o
