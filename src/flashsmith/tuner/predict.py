"""A small model that orders work: how many cycles an SM needs for a problem, from artefact facts.

For one block of scores (tile_q x tile_k) a block's warps issue instructions, use the tensor cores
and move shared memory; these three overlap between the warps that share an SM, so the longest of
them counts, and what latency is left is divided by the blocks that hide each other's. Every number
is a fact of the artefact (occupancy, spills) or a count of the emulator; the rates are the
architecture's. It is used to decide what is measured first, and never shown as a time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flashsmith.config.kernel_config import KernelConfig
from flashsmith.problem.attention_problem import AttentionProblem
from flashsmith.problem.cost import visible_area

SCHEDULERS = 4  # of an SM; each issues one warp instruction a cycle
SHARED_BYTES_A_CYCLE = 128  # of an SM
LATENCY_CYCLES = 900.0  # of a block of scores: barriers, copies and the softmax chain, not hidden
SPILL_CYCLES = 4.0  # a spilled byte, a block of scores


@dataclass(frozen=True, slots=True)
class Work:
    """What one block of scores takes, by resource, for one thread block."""

    instructions: float  # of all warps
    tensor_cycles: float
    shared_cycles: float  # with bank conflicts
    spill_bytes: int
    blocks_per_sm: int


def predicted_cycles(
    config: KernelConfig, problem: AttentionProblem, work: Work, sm_count: int
) -> float:
    """Cycles of the busiest SM; only the order of two predictions means something."""
    resident = max(work.blocks_per_sm, 1)
    busy = max(work.instructions / SCHEDULERS, work.tensor_cycles, work.shared_cycles)
    waits = LATENCY_CYCLES + SPILL_CYCLES * work.spill_bytes
    step = busy + waits / resident
    tiles = problem.batch * problem.heads * math.ceil(problem.q_len / config.tile_q)
    area = visible_area(problem) / max(problem.q_len * problem.k_len, 1)
    steps = max(area * math.ceil(problem.k_len / config.tile_k), 1.0)
    waves = math.ceil(tiles / (sm_count * resident)) * resident
    return waves * steps * step


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
    ranks = [np.argsort(np.argsort(values, kind="stable")) for values in (guess, truth)]
    correlation = float(np.corrcoef(ranks[0], ranks[1])[0, 1])
    return Quality(correlation, regret, len(guess))
