"""How near the truth 16-bit attention can be: the same computation in a kernel's precision.

16-bit inputs, products summed in float32 in steps of 16 along the contraction (tensor cores cut
their sums off towards zero), softmax in float32, weights and output rounded to 16 bits. Gradients
start from an O of 16 bits and an LSE of 32; the gradient of the scores is rounded to 16 bits before
its products. A kernel may be twice as far from the truth as this, because it sums in another order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flashsmith.base.dtypes import DType, from_bits, to_bits
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.mask import Mask
from flashsmith.problem.reference import OfHead, of_head, score, score_slope
from flashsmith.problem.sequences import sequences_of, without_pages

F32 = NDArray[np.float32]
MMA_STEP = 16  # elements of the contraction that one mma sums before it rounds


def same_precision(problem: AttentionProblem, inputs: Mapping[str, F32]) -> dict[str, F32]:
    """Every output by name: rows (batch, row, head, d), lse (batch, head, row); inputs likewise."""
    return _OPERATIONS[problem.operation](*without_pages(problem, inputs))


def _forward(problem: AttentionProblem, inputs: Mapping[str, F32]) -> dict[str, F32]:
    q, k, v = inputs["q"], inputs["k"], inputs["v"]
    o = np.zeros((*q.shape[:3], problem.v_width), np.float32)
    lse = np.full((problem.batch, problem.heads, problem.q_len), -np.inf, np.float32)
    for one in sequences_of(problem, inputs):
        b, rows, keys = one.batch, one.rows, one.keys
        for head in range(problem.heads):
            kv, numbers = head // problem.group, of_head(inputs, one, head)
            if not one.mask.k_len:
                lse[b, head, rows] = numbers.get("sinks", -np.inf)
                continue
            o[b, rows, head], lse[b, head, rows] = _one_head(
                *(q[b, rows, head], k[b, keys, kv], v[b, keys, kv]), one.mask, problem, numbers
            )
    return {"o": o, "lse": lse}


def _backward(problem: AttentionProblem, inputs: Mapping[str, F32]) -> dict[str, F32]:
    found = {f"d{name}": np.zeros(inputs[name].shape, np.float32) for name in "qkv"}
    matrices = (problem.bias_sequences, problem.bias_heads)
    dbias = np.zeros((*matrices, problem.q_len, problem.k_len), np.float32)
    for at in sequences_of(problem, inputs):
        b, rows, keys = at.batch, at.rows, at.keys
        for head in range(problem.heads if at.mask.k_len else 0):
            kv = head // problem.group
            one = {name: inputs[name][b, rows, head] for name in ("q", "o", "do")}
            one |= {name: inputs[name][b, keys, kv] for name in ("k", "v")}
            one |= {n: inputs[n][b, head, rows] for n in ("lse", "dlse") if n in inputs}
            dq, dk, dv, ds = _one_head_back(one, at.mask, problem, of_head(inputs, at, head))
            found["dq"][b, rows, head] = dq
            found["dk"][b, keys, kv] += dk
            found["dv"][b, keys, kv] += dv
            if problem.dbias:
                dbias[b % matrices[0], head % matrices[1]] += ds
    rounded = {name: _round(gradient, problem.dtype) for name, gradient in found.items()}
    return rounded | ({"dbias": dbias} if problem.dbias else {})


def _one_head_back(
    one: Mapping[str, F32],
    mask: Mask,
    problem: AttentionProblem,
    numbers: OfHead,
) -> tuple[F32, F32, F32, F32]:
    """dQ, dK and dV of one query head, not yet rounded, and the gradient of its scores."""
    q, k, v, do = one["q"], one["k"], one["v"], one["do"]
    scale = np.float32(problem.softmax_scale)
    with np.errstate(invalid="ignore", over="ignore"):
        products = _mma(q, k.T)
        scores = score(problem, products, mask, numbers)
        seen = mask.visible() & ~np.isneginf(scores)  # a bias hides keys too
        p = np.where(seen, np.exp(scores - one["lse"][:, None]), np.float32(0))
        delta = (do * one["o"]).sum(axis=1, dtype=np.float32)
        if problem.dlse:
            delta = delta - one["dlse"]
        of_scores = p * (_mma(do, v.T) - delta[:, None])
        ds = _round(of_scores * score_slope(problem, products), problem.dtype)
        dv = _round(p, problem.dtype).T @ do
        return ds @ k * scale, ds.T @ q * scale, dv, of_scores


_OPERATIONS: dict[str, Callable[[AttentionProblem, Mapping[str, F32]], dict[str, F32]]] = {
    "forward": _forward,
    "backward": _backward,
}


def _one_head(
    q: F32, k: F32, v: F32, mask: Mask, problem: AttentionProblem, numbers: OfHead
) -> tuple[F32, F32]:
    sink = np.float32(numbers.get("sinks", -np.inf))
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        scores = score(problem, _mma(q, k.T), mask, numbers)
        scores = np.where(mask.visible(), scores, np.float32(-np.inf))
        row_max = np.maximum(scores.max(axis=1, keepdims=True), sink)
        shift = np.where(np.isneginf(row_max), np.float32(0), row_max)
        weights = np.exp(scores - shift)
        total = weights.sum(axis=1, keepdims=True, dtype=np.float32) + np.exp(sink - shift)
        o = _round(weights, problem.dtype) @ v / np.where(total == 0, np.float32(1), total)
        return _round(o, problem.dtype), (np.log(total) + row_max)[:, 0]


def _mma(a: F32, b: F32) -> F32:
    """a @ b in float32 sums that are cut off towards zero after every step."""
    total = np.zeros((a.shape[0], b.shape[1]), np.float32)
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    for start in range(0, a.shape[1], MMA_STEP):
        step = slice(start, start + MMA_STEP)
        total = _toward_zero(total + wide_a[:, step] @ wide_b[step])
    return total


def _toward_zero(exact: NDArray[np.float64]) -> F32:
    rounded = exact.astype(np.float32)
    too_far = np.abs(rounded) > np.abs(exact)
    bits = rounded.view(np.int32)
    bits -= too_far  # the next number towards zero is one less, as bits, whatever its sign
    return rounded


def _round(values: NDArray[Any], dtype: DType) -> F32:
    return from_bits(to_bits(values, dtype), dtype).reshape(values.shape)
