"""How far an output may be from the truth, and where it is furthest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flashsmith.base.dtypes import DType, from_bits
from flashsmith.check.cases import Case, Inputs, inputs_of
from flashsmith.check.same_precision import same_precision
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.reference import reference
from flashsmith.problem.signature import signature_of

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
class Expected:
    """The truth of one output, what its errors are relative to, and how large they may be."""

    truth: NDArray[np.float64]  # indexed (batch, row, head, d), or (batch, head, row)
    scale: NDArray[np.float64]
    allowed: float


@lru_cache(maxsize=256)
def expectation_of(case: Case) -> Mapping[str, Expected]:
    """Truth and tolerance of every output of a case; the same for all configurations."""
    return expectation(case.problem, inputs_of(case))


def expectation(problem: AttentionProblem, bits: Inputs) -> Mapping[str, Expected]:
    """Truth and tolerance of every output for these inputs, (batch, row, head, d) as of a case."""
    # The layout is how tensors are handed over; these are indexed by row.
    problem = replace(problem, layout="bshd", lse=True)
    inputs = {name: from_bits(given, problem.dtype) for name, given in bits.items()}
    truth, near = reference(problem, inputs), same_precision(problem, inputs)
    found = {}
    for role in signature_of(problem).outputs(problem):
        name = role.name
        scale, roundoff = _row_scale(truth[name]), UNIT_ROUNDOFF[problem.dtype]
        if role.is_statistics:
            scale = np.maximum(_lse_scale(problem, inputs), _finite(truth[name]))
            roundoff = LSE_ROUNDOFF
        error = _furthest(_errors(near[name], truth[name], scale))[0]
        found[name] = Expected(truth[name], scale, FACTOR * max(error, roundoff))
    return found


def distance(name: str, expected: Expected, got: NDArray[np.float32]) -> Distance:
    """The element of an output that is furthest off.

    Relative to the largest number of its row; a log-sum-exp to the sums its row's scores were made
    of, or to itself where it is larger: many small scores have a large one, which is rounded as
    what it is.
    """
    worst, at = _furthest(_errors(got, expected.truth, expected.scale))
    return Distance(name, worst, expected.allowed, _place(name, at, got, expected.truth))


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
    problem: AttentionProblem, inputs: Mapping[str, NDArray[np.float32]]
) -> NDArray[np.float64]:
    """The largest sum of magnitudes behind a score of each row, and 1 at least.

    A score is a sum whose terms cancel: its rounding errors are as large as the terms, not as what
    is left of them.
    """
    q, k = inputs["q"], inputs["k"]
    scale = np.ones((problem.batch, problem.heads, problem.q_len))
    for batch in range(problem.batch):
        for head in range(problem.heads if problem.k_len else 0):
            sums = np.abs(q[batch, :, head]) @ np.abs(k[batch, :, head // problem.group]).T
            largest = np.nan_to_num(sums, nan=0.0).max(axis=1)
            scale[batch, head] = np.maximum(1.0, problem.softmax_scale * largest)
    return scale


def _furthest(errors: NDArray[np.float64]) -> tuple[float, tuple[int, ...]]:
    if not errors.size:
        return 0.0, ()
    flat = int(errors.argmax())
    at = tuple(int(i) for i in np.unravel_index(flat, errors.shape))
    return float(errors[at]), at


def place_text(tensor: str, at: tuple[int, ...]) -> str:
    """`o[batch 0, row 17, head 2, d 5]`."""
    axes = ("batch", "row", "head", "d") if len(at) == 4 else ("batch", "head", "row")
    index = ", ".join(f"{axis} {i}" for axis, i in zip(axes, at, strict=True))
    return f"{tensor}[{index}]"


def _place(tensor: str, at: tuple[int, ...], got: NDArray[Any], truth: NDArray[Any]) -> str:
    if not at:
        return ""
    return f"{place_text(tensor, at)} = {got[at]:.6g}, truth {truth[at]:.6g}"
