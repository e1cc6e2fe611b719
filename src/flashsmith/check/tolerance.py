"""How far an output may be from the truth, and where it is furthest."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flashsmith.base.dtypes import DType, from_bits
from flashsmith.check.cases import Case, inputs_of
from flashsmith.check.same_precision import same_precision_attention
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.reference import reference_attention

FACTOR = 2.0  # how many times the same-precision error is allowed
# Relative error of one rounding to nearest: an output cannot be nearer than its own rounding.
UNIT_ROUNDOFF = {DType.FP16: 2.0**-11, DType.BF16: 2.0**-8}
# ex2.approx and lg2.approx are right to 2^-22 (PTX ISA, "Floating Point Instructions").
LSE_ROUNDOFF = 2.0**-22


@dataclass(frozen=True, slots=True)
class Distance:
    """The worst element of one tensor: how far off, what is allowed, and which it is."""

    tensor: str
    worst: float
    allowed: float
    where: str

    @property
    def ok(self) -> bool:
        """Whether the worst element is near enough."""
        return self.worst <= self.allowed


@dataclass(frozen=True, slots=True)
class Expectation:
    """The truth of one case, and how far from it each tensor may be."""

    o: NDArray[np.float64]  # (batch, row, head, d)
    lse: NDArray[np.float64]  # (batch, head, row)
    lse_scale: NDArray[np.float64]  # what its errors are relative to
    o_allowed: float
    lse_allowed: float


@lru_cache(maxsize=256)
def expectation_of(case: Case) -> Expectation:
    """Truth and tolerance of a case; the same for every configuration that is checked on it."""
    dtype = case.problem.dtype
    q, k, v = (from_bits(bits, dtype) for bits in inputs_of(case).values())
    truth = reference_attention(case.problem, q, k, v)
    near_o, near_lse = same_precision_attention(case.problem, q, k, v)
    o_error = _furthest(_errors(near_o, truth.o, _row_scale(truth.o)))[0]
    lse_scale = np.maximum(_lse_scale(case.problem, q, k), _finite(truth.lse))
    lse_error = _furthest(_errors(near_lse, truth.lse, lse_scale))[0]
    return Expectation(
        truth.o,
        truth.lse,
        lse_scale,
        FACTOR * max(o_error, UNIT_ROUNDOFF[dtype]),
        FACTOR * max(lse_error, LSE_ROUNDOFF),
    )


def o_distance(expected: Expectation, o: NDArray[np.float32]) -> Distance:
    """The element of O that is furthest off, relative to the largest of its row."""
    worst, at = _furthest(_errors(o, expected.o, _row_scale(expected.o)))
    return Distance("o", worst, expected.o_allowed, _place("o", at, o, expected.o))


def lse_distance(expected: Expectation, lse: NDArray[np.float32]) -> Distance:
    """The LSE that is furthest off, relative to the sums its row's scores were made of.

    Or to itself, where it is larger: many small scores have a large log-sum-exp, which is rounded
    as what it is.
    """
    worst, at = _furthest(_errors(lse, expected.lse, expected.lse_scale))
    return Distance("lse", worst, expected.lse_allowed, _place("lse", at, lse, expected.lse))


def _errors(
    got: NDArray[np.float32], truth: NDArray[np.float64], scale: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Relative errors; what is not a number where the truth is one (or the reverse) is inf off."""
    with np.errstate(invalid="ignore", divide="ignore"):
        errors = np.abs(got.astype(np.float64) - truth) / scale
    same = (got == truth) | (np.isnan(got) & np.isnan(truth))
    return np.where(same, 0.0, np.where(np.isnan(errors), np.inf, errors))


def _row_scale(o: NDArray[np.float64]) -> NDArray[np.float64]:
    """The largest number of each row; 0 for a row that sees nothing, which must be exactly 0."""
    if not o.shape[-1]:
        return np.ones((*o.shape[:-1], 1))
    return np.asarray(_finite(o).max(axis=-1, keepdims=True))


def _finite(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Magnitudes, 0 for what is not finite."""
    return np.asarray(np.where(np.isfinite(values), np.abs(values), 0.0))


def _lse_scale(
    problem: AttentionProblem, q: NDArray[np.float32], k: NDArray[np.float32]
) -> NDArray[np.float64]:
    """The largest sum of magnitudes behind a score of each row, and 1 at least.

    A score is a sum whose terms cancel: its rounding errors are as large as the terms, not as what
    is left of them.
    """
    scale = np.ones((problem.batch, problem.heads, problem.q_len))
    group = problem.heads // max(problem.kv_heads, 1)
    for batch in range(problem.batch):
        for head in range(problem.heads if problem.k_len else 0):
            sums = np.abs(q[batch, :, head]) @ np.abs(k[batch, :, head // group]).T
            largest = np.nan_to_num(sums, nan=0.0).max(axis=1)
            scale[batch, head] = np.maximum(1.0, problem.softmax_scale * largest)
    return scale


def _furthest(errors: NDArray[np.float64]) -> tuple[float, tuple[int, ...]]:
    if not errors.size:
        return 0.0, ()
    flat = int(errors.argmax())
    at = tuple(int(i) for i in np.unravel_index(flat, errors.shape))
    return float(errors[at]), at


_AXES = {"o": ("batch", "row", "head", "d"), "lse": ("batch", "head", "row")}


def place_text(tensor: str, at: tuple[int, ...]) -> str:
    """`o[batch 0, row 17, head 2, d 5]`."""
    index = ", ".join(f"{axis} {i}" for axis, i in zip(_AXES[tensor], at, strict=True))
    return f"{tensor}[{index}]"


def _place(tensor: str, at: tuple[int, ...], got: NDArray[Any], truth: NDArray[Any]) -> str:
    if not at:
        return ""
    return f"{place_text(tensor, at)} = {got[at]:.6g}, truth {truth[at]:.6g}"
