"""How far an output may be from the truth, and where it is furthest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flashsmith.base.dtypes import DType
from flashsmith.check.cases import Case, Inputs, inputs_of
from flashsmith.check.same_precision import same_precision
from flashsmith.check.scales import error_scales
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.reference import reference
from flashsmith.problem.signature import signature_of
from flashsmith.runtime.tensors import numbers_of

FACTOR = 2.0  # how many times the same-precision error is allowed
# Relative error of one rounding to nearest: an output cannot be nearer than its own rounding.
UNIT_ROUNDOFF = {DType.FP16: 2.0**-11, DType.BF16: 2.0**-8}
# ex2.approx and lg2.approx are right to 2^-22 (PTX ISA, "Floating Point Instructions").
FLOAT32_ROUNDOFF = 2.0**-22


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
    relative_to: NDArray[np.float64]
    allowed: float


@lru_cache(maxsize=256)
def expectation_of(case: Case) -> Mapping[str, Expected]:
    """Truth and tolerance of every output of a case; the same for all configurations."""
    return expectation(case.problem, inputs_of(case))


def expectation(problem: AttentionProblem, bits: Inputs) -> Mapping[str, Expected]:
    """Truth and tolerance of every output for these inputs, (batch, row, head, d) as of a case."""
    # The layout is how tensors are handed over; these are indexed by row.
    problem = replace(problem, layout="bshd")
    roles = signature_of(problem).inputs(problem)
    inputs = {role.name: numbers_of(role, bits[role.name], problem) for role in roles}
    truth, near = reference(problem, inputs), same_precision(problem, inputs)
    scales = error_scales(problem, inputs, truth)
    found = {}
    for role in (r for r in signature_of(problem).tensors if r.is_output and r.name in truth):
        name = role.name
        roundoff = UNIT_ROUNDOFF[problem.dtype] if role.is_rows else FLOAT32_ROUNDOFF
        error = _furthest(_errors(near[name], truth[name], scales[name]))[0]
        found[name] = Expected(truth[name], scales[name], FACTOR * max(error, roundoff))
    return found


def distance(name: str, expected: Expected, got: NDArray[np.float32]) -> Distance:
    """The element of an output that is furthest off, relative to its scale (check/scales.py)."""
    worst, at = _furthest(_errors(got, expected.truth, expected.relative_to))
    return Distance(name, worst, expected.allowed, _position(name, at, got, expected.truth))


def _errors(
    got: NDArray[np.float32], truth: NDArray[np.float64], relative_to: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Relative errors; what is not a number where the truth is one (or the reverse) is inf off."""
    with np.errstate(invalid="ignore", divide="ignore"):
        errors = np.abs(got.astype(np.float64) - truth) / relative_to
    same = (got == truth) | (np.isnan(got) & np.isnan(truth))
    return np.where(same, 0.0, np.where(np.isnan(errors), np.inf, errors))


def _furthest(errors: NDArray[np.float64]) -> tuple[float, tuple[int, ...]]:
    if not errors.size:
        return 0.0, ()
    flat = int(errors.argmax())
    at = tuple(int(i) for i in np.unravel_index(flat, errors.shape))
    return float(errors[at]), at


def position_text(tensor: str, at: tuple[int, ...]) -> str:
    """`o[batch 0, row 17, head 2, d 5]`."""
    axes = ("batch", "row", "head", "d") if len(at) == 4 else ("batch", "head", "row")
    axes = ("batch", "head", "row", "key") if tensor == "dbias" else axes
    index = ", ".join(f"{axis} {i}" for axis, i in zip(axes, at, strict=True))
    return f"{tensor}[{index}]"


def _position(tensor: str, at: tuple[int, ...], got: NDArray[Any], truth: NDArray[Any]) -> str:
    if not at:
        return ""
    return f"{position_text(tensor, at)} = {got[at]:.6g}, truth {truth[at]:.6g}"
