"""Why caps have no fast form: what tanh.approx.f32 may be off is more than check/ allows."""

import numpy as np
import pytest
from nearness import expected_of

from flashsmith.base.dtypes import DType, from_bits, to_bits
from flashsmith.check.tolerance import distance
from flashsmith.problem.attention import AttentionProblem

TANH_APPROX = 2**-11  # the largest relative error that the PTX ISA states
CAP = 50.0  # Gemma 2's
FAR = 4  # times the cap: the largest score


def in_16_bits(x, dtype):
    """The numbers as an element type holds them."""
    return from_bits(to_bits(x.astype(np.float32), dtype), dtype)


@pytest.mark.parametrize("dtype", DType)
def test_a_cap_by_tanh_approx_is_off_by_more_than_is_allowed(dtype):
    problem = AttentionProblem(1, 2, 2, 128, 512, 128, dtype=dtype, softcap=CAP)
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, rows, 2, 128)) for rows in (128, 512, 512))
    scale = 128**-0.5
    q *= FAR * CAP / np.abs(np.einsum("bshd,bkhd->bhsk", q, k) * scale).max()
    bits = [to_bits(x.astype(np.float32), dtype) for x in (q, k, v)]
    expected = expected_of(problem, **dict(zip("qkv", bits, strict=True)))["o"]
    q, k, v = (from_bits(x, dtype).astype(np.float64) for x in bits)
    capped = np.tanh(np.einsum("bshd,bkhd->bhsk", q, k) * scale / CAP)
    for error, is_right in ((0.0, True), (TANH_APPROX, False)):
        off = 1 + error * rng.uniform(-1, 1, capped.shape)
        scores = CAP * np.clip(capped * off, -1, 1)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        kept = in_16_bits(weights, dtype)  # as the second product takes them
        o = np.einsum("bhsk,bkhd->bshd", kept / weights.sum(-1, keepdims=True), v)
        assert distance("o", expected, in_16_bits(o, dtype)).ok == is_right
