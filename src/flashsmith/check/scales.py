"""What an error is relative to: how large the numbers are whose roundings make it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from flashsmith.base.dtypes import DType
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.reference import LEAST_SCORE, head_gradients, of_head, score
from flashsmith.problem.sequences import sequences_of, without_pages

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
Scales = dict[str, F64]
# Below these, numbers of 16 bits lose places (FP16: the smallest normal number), or an exponential
# that is flushed to zero (2^-126) is a whole rounding off.
SMALLEST = {DType.FP16: 2.0**-14, DType.BF16: 2.0**-118}


def error_scales(
    problem: AttentionProblem, inputs: Mapping[str, F32], truth: Mapping[str, F64]
) -> Scales:
    """Of every output, by name, what errors of its rows are relative to; inputs by row."""
    return _OPERATIONS[problem.operation](*without_pages(problem, inputs), truth)


def _forward(
    problem: AttentionProblem, inputs: Mapping[str, F32], truth: Mapping[str, F64]
) -> Scales:
    """O: itself and the terms of its sum. LSE: the sums that the row's scores were made of.

    The largest of a row of O counts: where terms cancel in all of its columns, their roundings do
    not. The LSE itself, where it is larger: many small scores have a large one, which is rounded as
    what it is.
    """
    lse = np.maximum(_score_sums(problem, inputs), _finite(truth["lse"]))
    return {"o": _row_scale(np.hypot(truth["o"], _weighted(problem, inputs, truth))), "lse": lse}


def _weighted(
    problem: AttentionProblem, inputs: Mapping[str, F32], truth: Mapping[str, F64]
) -> F64:
    """The root of the sum of squares of the terms P V of each element of O."""
    wide = {name: inputs[name].astype(np.float64) for name in "qkv"}
    squares = np.zeros_like(truth["o"])
    for at in sequences_of(problem, inputs):
        b, rows, keys = at.batch, at.rows, at.keys
        for head in range(problem.heads if at.mask.k_len else 0):
            kv = head // problem.group
            lse = truth["lse"][b, head, rows, None]
            with np.errstate(invalid="ignore", over="ignore"):
                products = wide["q"][b, rows, head] @ wide["k"][b, keys, kv].T
                scores = score(problem, products, at.mask, of_head(inputs, at, head))
                p = np.exp(np.where(at.mask.visible() & np.isfinite(lse), scores - lse, -np.inf))
                squares[b, rows, head] = (p**2) @ wide["v"][b, keys, kv] ** 2
    return np.sqrt(squares)


def _backward(
    problem: AttentionProblem, inputs: Mapping[str, F32], truth: Mapping[str, F64]
) -> Scales:
    """The root of the sum of squares of everything that is rounded on the way to a gradient.

    That is the gradient itself, the terms of its last sum (P and dS have 16 bits there), and what
    the rounding of O to 16 bits does to dS: dP - delta cancels where one key has all the weight,
    and the gradient is then far smaller than what it is made of. A weight below `SMALLEST` is
    rounded as if it were that. The largest of a row counts.
    """
    wide = {name: array.astype(np.float64) for name, array in inputs.items()}
    squares = {name: gradient**2 for name, gradient in truth.items()}
    scale = problem.softmax_scale
    for at in sequences_of(problem, inputs):
        b, rows, keys = at.batch, at.rows, at.keys
        for h in range(problem.heads if at.mask.k_len else 0):
            kv = h // problem.group
            one = {name: wide[name][b, rows, h] for name in ("q", "do")}
            one |= {name: wide[name][b, keys, kv] for name in ("k", "v")}
            one |= {name: wide[name][b, h, rows] for name in ("dlse",) if name in wide}
            q, k, v, do = (one[name] for name in ("q", "k", "v", "do"))
            head = head_gradients(problem, one, at.mask, of_head(inputs, at, h))
            least = np.where(at.mask.visible(), SMALLEST[problem.dtype], 0.0)
            p2, ds2 = (np.maximum(np.abs(x), least) ** 2 for x in (head.p, head.ds))
            from_o = ((do * (head.p @ v)) ** 2).sum(axis=1, keepdims=True)  # of delta
            of_row = ds2 @ k**2 + from_o * ((head.p * head.slope) @ k) ** 2
            squares["dq"][b, rows, h] += scale**2 * of_row
            squares["dk"][b, keys, kv] += scale**2 * ((ds2 + p2 * head.slope**2 * from_o).T @ q**2)
            squares["dv"][b, keys, kv] += p2.T @ do**2
            if problem.dbias:
                own = b % problem.bias_sequences, h % problem.bias_heads
                squares["dbias"][own] += head.of_scores**2 + p2 * from_o
    return {name: _row_scale(np.sqrt(square)) for name, square in squares.items()}


_OPERATIONS: dict[
    str, Callable[[AttentionProblem, Mapping[str, F32], Mapping[str, F64]], Scales]
] = {"forward": _forward, "backward": _backward}


def _row_scale(o: F64) -> F64:
    """The largest number of each row; 0 for a row that sees nothing, which must be exactly 0."""
    if not o.shape[-1]:
        return np.ones((*o.shape[:-1], 1))
    return np.asarray(_finite(o).max(axis=-1, keepdims=True))


def _finite(values: F64) -> F64:
    """Magnitudes, 0 for what is not finite."""
    return np.asarray(np.where(np.isfinite(values), np.abs(values), 0.0))


def _score_sums(problem: AttentionProblem, inputs: Mapping[str, F32]) -> F64:
    """The largest sum of magnitudes behind a score of each row, and 1 at least.

    A score is a sum whose terms cancel: its rounding errors are as large as the terms, not as what
    is left of them. A capped one is made of the cap, and a slope and a bias
    add their share.
    """
    q, k = inputs["q"], inputs["k"]
    scale = np.ones((problem.batch, problem.heads, problem.q_len))
    for at in sequences_of(problem, inputs):
        b, rows, keys = at.batch, at.rows, at.keys
        for head in range(problem.heads if at.mask.k_len else 0):
            sums = np.abs(q[b, rows, head]) @ np.abs(k[b, keys, head // problem.group]).T
            sums = problem.softmax_scale * np.nan_to_num(sums, nan=0.0)
            if problem.alibi:
                slope = of_head(inputs, at, head)["alibi_slopes"]
                sums = sums + np.where(at.mask.visible(), abs(slope) * at.mask.distances(), 0.0)
            if problem.bias not in ("", "bool"):
                bias = np.nan_to_num(np.abs(of_head(inputs, at, head)["bias"]), posinf=0.0)
                sums = sums + np.where(bias < -LEAST_SCORE, bias, 0.0)
            largest = np.maximum(sums.max(axis=1), problem.softcap or 1.0)
            scale[b, head, rows] = np.maximum(1.0, largest)
    return scale
