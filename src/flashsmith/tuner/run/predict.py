"""A small model that orders work: how many cycles an SM needs for a problem, from artefact facts.

For one block of scores (tile_q x tile_k) a block's warps issue instructions, use the tensor cores
and read shared memory. The three overlap, but not wholly: their root of squares lies between the
longest of them (all overlaps) and their sum (nothing does). Waits are divided by the blocks that
an SM holds, which hide each other's. Every number is a fact of the artefact (occupancy, spills) or
a count of the emulator; the rates are the architecture's. It decides what is measured first, and
is never shown as a time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flashsmith.arch import Arch
from flashsmith.kernels.kernel import KernelConfig
from flashsmith.kernels.plans import ends_together, plan
from flashsmith.measure.facts import Facts
from flashsmith.problem.attention import AttentionProblem

Floats = NDArray[np.float64]

# `tune` measures in the predicted order as long as the top-5 regret on committed measurements
# (`flashsmith tune predict --against`) is at most this; tests/tuner/test_predict.py holds it.
ALLOWED_REGRET = 0.05

WAIT_CYCLES = 300.0  # of a block of scores: barriers, copies and the softmax chain
SPILL_CYCLES = 4.0  # a spilled byte, a block of scores
# Multiply-adds (as two operations) of an SM in a cycle: by single warps, by groups of four.
# The data sheets' peaks; on sm_90a and sm_100a single warps reach a part of them.
TENSOR_RATES: Mapping[str, tuple[float, float]] = {
    "sm_80": (2048, 2048),
    "sm_86": (512, 512),
    "sm_89": (512, 512),
    "sm_90a": (2600, 4096),
    "sm_100a": (2048, 8192),
    "sm_120": (512, 512),
}


@dataclass(frozen=True, slots=True)
class StepCycles:
    """What one block of scores takes of an SM, each part as if it were alone."""

    issue: float  # of instructions
    tensor: float
    shared: float
    waits: float  # what the other blocks of the SM do not hide

    @property
    def total(self) -> float:
        """The parts together: they overlap, but not wholly."""
        return math.hypot(self.issue, self.tensor, self.shared) + self.waits

    @property
    def limit(self) -> str:
        """The largest part, in words."""
        parts = {
            "issuing instructions": self.issue,
            "tensor cores": self.tensor,
            "shared memory": self.shared,
            "waits": self.waits,
        }
        return max(parts, key=lambda name: parts[name])


def step_cycles(config: KernelConfig, facts: Facts, arch: Arch) -> StepCycles | None:
    """What a block of scores costs; None for a kernel whose events could not be counted."""
    if facts.instructions is None or facts.shared_cycles is None or not facts.blocks_per_sm:
        return None
    by_warps, by_groups = TENSOR_RATES[arch.name]
    rate = by_groups if facts.group_share else by_warps
    operations = 4 * config.tile_q * config.tile_k * config.d_head
    waits = WAIT_CYCLES + SPILL_CYCLES * facts.spill_bytes
    return StepCycles(
        issue=facts.instructions / arch.sub_partitions,
        tensor=operations / rate,
        shared=facts.shared_cycles,
        waits=waits / facts.blocks_per_sm,
    )


def predicted_cycles(
    config: KernelConfig, problem: AttentionProblem, facts: Facts, arch: Arch, sm_count: int
) -> float:
    """Cycles of the busiest SM; only the order of two predictions means something.

    Infinite, which is last, for a kernel whose events could not be counted.
    """
    step = step_cycles(config, facts, arch)
    if step is None:
        return math.inf
    tiles = problem.batch * problem.heads * math.ceil(problem.q_len / config.tile_q)
    seen = problem.mask.area / max(problem.q_len * problem.k_len, 1)
    steps = max(seen * math.ceil(problem.k_len / config.tile_k), 1.0)
    # A full wave costs what its blocks take together; the last one costs as much as a full one,
    # unless its tiles are split.
    waves = tiles / (sm_count * facts.blocks_per_sm)
    if not ends_together(plan(config, problem, sm_count=sm_count)):
        waves = math.ceil(waves)
    return waves * facts.blocks_per_sm * steps * step.total


@dataclass(frozen=True, slots=True)
class Quality:
    """How good an order is against measured times."""

    rank_correlation: float  # Spearman's
    top_5_regret: float  # how much slower the best of the first five is than the best of all
    count: int


def quality(predicted: Sequence[float], measured: Sequence[float]) -> Quality:
    """Compares an order with the times that were measured; at least two of them."""
    guess, truth = np.asarray(predicted), np.asarray(measured)
    first = np.argsort(guess, kind="stable")[:5]
    regret = float(truth[first].min() / truth.min() - 1.0)
    a, b = _ranks(guess), _ranks(truth)
    spread = float(np.std(a) * np.std(b))
    correlation = float(np.mean((a - a.mean()) * (b - b.mean()))) / spread if spread else 0.0
    return Quality(correlation, regret, len(guess))


def _ranks(values: Floats) -> Floats:
    """The place of each value; equal values share the mean of their places."""
    below = (values[None, :] < values[:, None]).sum(axis=1)
    equal = (values[None, :] == values[:, None]).sum(axis=1)
    return np.asarray(below + (equal - 1) / 2.0, np.float64)
