"""Timing configurations on one problem, side by side on the same tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from flashsmith.base.dtypes import to_bits
from flashsmith.kernels.kernel import KernelConfig
from flashsmith.kernels.launch import ForwardCall
from flashsmith.measure.interleaved import Comparison, Contender, Regime, compare, sample_us
from flashsmith.measure.statistics import Summary, summarize
from flashsmith.problem.attention import AttentionProblem
from flashsmith.runtime.cuda.device import CudaDevice
from flashsmith.runtime.run import prepare_forward
from flashsmith.runtime.tensors import tensor_shapes, tensors_on

_BLOCK = 1 << 20  # random numbers that are made; larger tensors repeat them


def time_configs(
    device: CudaDevice,
    configs: Sequence[KernelConfig],
    problem: AttentionProblem,
    *,
    others: Sequence[Contender] = (),
    lse: bool = False,
    rounds: int = 21,
    regime: Regime = "burst",
) -> Comparison:
    """Times `others` and then the configurations; the first of all is the baseline."""
    with tensors_on(device, problem, random_inputs(problem), lse=lse) as call:
        ours = [contender_of(device, config, problem, call) for config in configs]
        return compare(device, [*others, *ours], rounds=rounds, regime=regime)


def screen_us(
    device: CudaDevice,
    config: KernelConfig,
    problem: AttentionProblem,
    call: ForwardCall,
    *,
    runs: int,
) -> Summary:
    """A few runs of one configuration after a flush: enough to tell the slow from the rest."""
    return summarize(sample_us(device, contender_of(device, config, problem, call), runs=runs))


def contender_of(
    device: CudaDevice, config: KernelConfig, problem: AttentionProblem, call: ForwardCall
) -> Contender:
    """A configuration on tensors of the device, ready to be timed."""
    prepared = prepare_forward(device, config, problem, lse=call.lse != 0)
    return Contender(config.short_form(), lambda stream: prepared(call, stream))


def random_inputs(problem: AttentionProblem, seed: int = 0) -> dict[str, NDArray[np.uint16]]:
    """Normal q, k and v: how much power a tensor core draws depends on what it multiplies."""
    random = np.random.default_rng(seed)
    inputs = {}
    for name, shape in tensor_shapes(problem).items():
        if name != "o":
            numbers = random.standard_normal(min(math.prod(shape), _BLOCK), np.float32)
            inputs[name] = np.resize(to_bits(numbers, problem.dtype), shape)
    return inputs
