"""Rows whose scores all lie far below 0: a softmax without a row maximum must not lose them."""

import numpy as np
import pytest

from flashsmith.base.dtypes import DType, from_bits, to_bits
from flashsmith.kernels import get_kernel_configs
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.reference import reference
from flashsmith.runtime.run import run_arrays

FP16 = [config for config in get_kernel_configs("hopper") if config.dtype is DType.FP16]
BY_STATISTICS = {config.statistics: config for config in reversed(FP16)}
ROWS = 70


@pytest.mark.parametrize("config", BY_STATISTICS.values(), ids=lambda config: config.short_form())
def test_the_error_does_not_grow_when_every_score_falls(device, config):
    errors = [_error(device, config, shift) for shift in (0.0, -9.7, -25.0)]
    assert max(errors) < 1.1 * errors[0]


def _error(device, config, shift):
    """Relative Frobenius error where one component moves every score by `shift`."""
    random = np.random.default_rng(0)
    keys, d = 2 * config.tile_k + 3, config.d_head
    problem = AttentionProblem(1, 1, 1, ROWS, keys, d, config.dtype)
    q, k, v = (random.standard_normal((1, n, 1, d)) for n in (ROWS, keys, keys))
    q[..., 0], k[..., 0] = 4.0, shift * np.sqrt(d) / 4.0
    bits = {n: to_bits(x, config.dtype) for n, x in zip("qkv", (q, k, v), strict=True)}
    o = run_arrays(device, config, problem, bits)["o"]
    truth = reference(problem, {n: from_bits(x, config.dtype) for n, x in bits.items()})["o"]
    return np.linalg.norm(from_bits(o, config.dtype) - truth) / np.linalg.norm(truth)
