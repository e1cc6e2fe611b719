"""Timing configurations on one problem, side by side on the same tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flashsmith.base.dtypes import to_bits
from flashsmith.check.cases import drawn_pages
from flashsmith.kernels.kernel import KernelConfig
from flashsmith.kernels.launch import Call
from flashsmith.measure.interleaved import Comparison, Contender, Regime, compare, sample_us
from flashsmith.measure.statistics import Summary, summarize
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.signature import TensorRole, signature_of
from flashsmith.runtime.cuda.device import CudaDevice
from flashsmith.runtime.run import prepare
from flashsmith.runtime.tensors import contiguous_tensors, uploaded

_BLOCK = 1 << 20  # random numbers that are made; larger tensors repeat them


def time_configs(
    device: CudaDevice,
    configs: Sequence[KernelConfig],
    problem: AttentionProblem,
    *,
    others: Sequence[Contender] = (),
    rounds: int = 21,
    regime: Regime = "burst",
) -> Comparison:
    """Times `others` and then the configurations; the first of all is the baseline."""
    locations, buffers = contiguous_tensors(problem, random_inputs(problem))
    with uploaded(device, buffers) as held:
        call = held.call(locations)
        ours = [contender_of(device, config, problem, call) for config in configs]
        return compare(device, [*others, *ours], rounds=rounds, regime=regime)


def screen_us(
    device: CudaDevice,
    config: KernelConfig,
    problem: AttentionProblem,
    call: Call,
    *,
    runs: int,
) -> Summary:
    """A few runs of one configuration after a flush: enough to tell the slow from the rest."""
    return summarize(sample_us(device, contender_of(device, config, problem, call), runs=runs))


def contender_of(
    device: CudaDevice, config: KernelConfig, problem: AttentionProblem, call: Call
) -> Contender:
    """A configuration on tensors of the device, ready to be timed."""
    prepared = prepare(device, config, problem)
    return Contender(config.short_form(), lambda stream: prepared(call, stream))


def random_inputs(problem: AttentionProblem, seed: int = 0) -> dict[str, NDArray[Any]]:
    """Normal inputs: how much power a tensor core draws depends on what it multiplies.

    A log-sum-exp is about that of normal Q and K: weights then have the size that they have.
    """
    random = np.random.default_rng(seed)
    inputs: dict[str, NDArray[Any]] = {}
    for role in signature_of(problem).inputs(problem):
        shape = role.shape(problem)
        if role.of:
            inputs[role.name] = table_of(role, problem, random)
            continue
        if role.is_scores:
            inputs[role.name] = _bias(role, problem, random)
            continue
        if role.is_statistics:
            seen = np.maximum(problem.mask.visible_counts(), 1).astype(np.float32)
            numbers = np.broadcast_to(np.log(seen) + np.float32(0.5), shape)
            inputs[role.name] = np.ascontiguousarray(numbers).view(np.uint32)
            continue
        numbers = random.standard_normal(min(math.prod(shape), _BLOCK), np.float32)
        inputs[role.name] = np.resize(to_bits(numbers, problem.dtype), shape)
    return inputs


def _bias(role: TensorRole, problem: AttentionProblem, random: np.random.Generator) -> NDArray[Any]:
    """One that sequences and heads share, as a problem's cost counts it; it hides no key."""
    shape = role.shape(problem)
    plane = (1, 1, *shape[2:])
    numbers = np.resize(random.standard_normal(min(math.prod(plane), _BLOCK), np.float32), plane)
    if problem.bias == "bool":
        return np.broadcast_to(np.ones(plane, np.uint8), shape)
    bits = to_bits(numbers, problem.dtype) if problem.bias == "same" else numbers.view(np.uint32)
    return np.broadcast_to(bits, shape)


def table_of(
    role: TensorRole, problem: AttentionProblem, random: np.random.Generator
) -> NDArray[np.uint32]:
    """Lengths are the whole of what there is: that is the work that a problem's cost counts."""
    shape = role.shape(problem)
    if role.name in ("cu_seqlens_q", "cu_seqlens_k"):  # equally long, as a cost counts them
        length = problem.q_len if role.name == "cu_seqlens_q" else problem.k_len
        return np.linspace(0, length, shape[0]).astype(np.uint32)
    if role.name == "block_table":
        return drawn_pages(problem, random).view(np.uint32)
    if role.is_integer:
        return np.full(shape, problem.k_len, np.uint32)
    return random.uniform(0.0, 0.5, shape).astype(np.float32).view(np.uint32)
