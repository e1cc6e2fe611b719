"""The bits of a configuration's output on fixed inputs: equal bits make a numeric class."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from flashsmith.base.dtypes import DType, from_bits, to_bits
from flashsmith.kernels.kernel import KernelConfig
from flashsmith.kernels.plans import plan, sum_order
from flashsmith.measure.timed_configs import random_inputs
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.signature import FORWARD
from flashsmith.runtime.device import Device
from flashsmith.runtime.run import run_arrays

# Lengths that no tile divides: masks, ragged edges and at least three key blocks take part.
_QUERIES, _KEYS, _HEADS, _SEED = 197, 419, 3, 20261115


def fingerprint_problem(problem: AttentionProblem) -> AttentionProblem:
    """The fixed problem on which configurations for `problem` are told apart by their bits."""
    return replace(
        problem,
        batch=1,
        heads=_HEADS,
        kv_heads=1,
        q_len=_QUERIES,
        k_len=_KEYS,
        diagonal=None,
        scale=None,
        layout="bshd",
        lse=False,
    )


def fingerprint_of(device: Device, config: KernelConfig, problem: AttentionProblem) -> str:
    """A hash of the output's bits on the fixed problem, and of what else decides on `problem`.

    The fixed problem is small: a GPU neither splits its tiles nor gives a block a second one.
    """
    order = sum_order(plan(config, problem, sm_count=device.sm_count))
    fixed = fingerprint_problem(problem)
    inputs = random_inputs(fixed, _SEED)
    if fixed.operation == FORWARD.operation:  # gradients take the maxima as they are given
        inputs["q"] = _of_all_sizes(inputs["q"], fixed.dtype)
    outputs = run_arrays(device.in_fixed_order(), config, fixed, inputs)
    bits = b"".join(array.tobytes() for array in outputs.values())
    return hashlib.sha256(bits + order.encode()).hexdigest()[:16]


def _of_all_sizes(q: NDArray[np.uint16], dtype: DType) -> NDArray[np.uint16]:
    """Queries times 1 to 64, row by row: neighbours' maxima then move at different keys.

    Kernels that leave the maximum of a warp's rows as long as none outgrew it differ by this.
    """
    sizes = np.exp2(np.arange(q.shape[1]) % 7).astype(np.float32)
    return to_bits(from_bits(q, dtype) * sizes[None, :, None, None], dtype)
