"""How near the truth a result must be: at most twice as far as the same sums of its precision."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from flashsmith.base.dtypes import DType, to_bits
from flashsmith.check.same_precision import same_precision
from flashsmith.check.tolerance import FACTOR, UNIT_ROUNDOFF, Expected, distance, expectation
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.signature import signature_of
from flashsmith.runtime.tensors import numbers_of


def expected_of(problem: AttentionProblem, **inputs) -> dict[str, Expected]:
    """Truth and allowance of every output, with the rule of check/.

    Inputs are arrays or tensors, indexed (batch, row, head, d) whatever the layout.
    """
    return dict(expectation(problem, {name: bits_of(x) for name, x in inputs.items()}))


def expected_gradients(problem: AttentionProblem, do, **inputs) -> dict[str, Expected]:
    """Of dq, dk and dv for a forward `problem`: from an O and LSE of the same precision."""
    bits = {name: bits_of(x) for name, x in inputs.items()}
    roles = {role.name: role for role in signature_of(problem).inputs(problem)}
    numbers = {name: numbers_of(roles[name], array, problem) for name, array in bits.items()}
    found = same_precision(problem, numbers)
    bits |= {"o": to_bits(found["o"], problem.dtype), "lse": found["lse"].view(np.uint32)}
    backward = replace(problem, operation="backward", lse=False)
    return dict(expectation(backward, bits | {"do": bits_of(do)}))


def require_expected(expected: dict[str, Expected], **found) -> None:
    """Holds outputs against what `expected_of` says of those names."""
    for name, got in found.items():
        assert wide(got).shape == expected[name].truth.shape
        off = distance(name, expected[name], wide(got).astype(np.float32))
        assert off.ok, f"{name} is too far from the truth: {off}"


def require_near(found, truth, same, dtype: DType) -> None:
    """Holds one result against `truth`, of float64, and `same`, its sums where rows have `dtype`.

    Where `same` happens to be exact, two roundings of the largest element are allowed.
    """
    found, truth, same = (wide(x) for x in (found, truth, same))
    assert found.shape == truth.shape == same.shape
    if not truth.size:
        return
    allowed = FACTOR * max(np.abs(same - truth).max(), UNIT_ROUNDOFF[dtype] * np.abs(truth).max())
    off = np.abs(found - truth)
    at = tuple(int(i) for i in np.unravel_index(off.argmax(), off.shape))  # a NaN is the largest
    assert off[at] <= allowed, f"element {at} is {off[at]:.3g} off, {allowed:.3g} is allowed"


def bits_of(array) -> np.ndarray:
    """Unsigned integers of the width of the elements, of an array or a tensor."""
    if hasattr(array, "detach"):
        array = array.detach().cpu()
        array = (array.view(_torch().int16) if "bfloat16" in str(array.dtype) else array).numpy()
    array = np.ascontiguousarray(array)
    return array.view(f"u{array.itemsize}")


def wide(array) -> np.ndarray:
    """The numbers as float64, of an array or a tensor."""
    if hasattr(array, "detach"):
        array = array.detach().cpu().double().numpy()
    return np.asarray(array).astype(np.float64)


def rounded(x, dtype: DType | None):
    """What is left of a tensor, and of its gradient, that is kept in 16 bits; None: all of it."""
    kinds = {DType.FP16: "float16", DType.BF16: "bfloat16"}
    return x if dtype is None else x.to(getattr(_torch(), kinds[dtype])).to(x.dtype)


def _torch():
    import torch

    return torch
