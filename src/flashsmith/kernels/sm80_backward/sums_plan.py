"""How gradients with sums of dQ in memory are laid out: row statistics, kv blocks by turns."""

from __future__ import annotations

import math

from flashsmith.kernels.kernel import KernelConfig
from flashsmith.kernels.launch import Plan
from flashsmith.kernels.sm80_backward.parts import STATISTICS_BYTES
from flashsmith.kernels.sm80_backward.plan import (
    BackwardLaunch,
    DqSums,
    geometry_of,
    needs_of_part,
    padded_rows,
)
from flashsmith.kernels.sm80_backward.sums import Sm80SumsConfig
from flashsmith.problem.attention import AttentionProblem


def plan_sums(config: Sm80SumsConfig, problem: AttentionProblem) -> Plan:
    """The launches of `config` on `problem`, in the order in which they follow from each other."""
    rows, heads = padded_rows(problem), problem.heads * problem.batch
    statistics = heads * rows * STATISTICS_BYTES  # a multiple of 1,024
    of_dq = heads * rows * config.d_head * 4
    turn_rows = config.turn * config.B_r
    kv_heads = problem.kv_heads * problem.batch
    sums = DqSums(
        place=statistics,
        counters=statistics + of_dq,
        n_counters=1 + heads * math.ceil(rows / turn_rows) * config.blocks.owners,
        section_heads=section_heads(config, problem, kv_heads),
    )
    delta, rounding = config.delta, config.rounding
    counts: dict[KernelConfig, int] = {
        delta: rows // delta.tile_q * heads,
        config.blocks: math.ceil(problem.k_len / config.B_c) * kv_heads,
        rounding: rows // rounding.tile_q * heads,
    }
    if config.rounds:
        del counts[rounding]
    return tuple(
        BackwardLaunch(
            part,
            problem,
            needs_of_part(part, problem),
            geometry_of(part, count),
            scratch_bytes=sums.counters + 4 * sums.n_counters,
            sums=sums,
        )
        for part, count in counts.items()
    )


def section_heads(config: Sm80SumsConfig, problem: AttentionProblem, heads: int) -> int:
    """Of `heads` heads of K and V, how many are drawn together, a block of each at a time.

    Blocks of one head that begin together wait for each other; here each begins when the one
    before has gone on, if Q, dO and dQ of as many heads fit L2.
    """
    row_bytes = 8 * config.d_head * problem.group  # Q, dO: 2 bytes; dQ: 4
    most = max(min((config.section_mb << 20) // (row_bytes * max(problem.q_len, 1)), heads), 1)
    return math.ceil(heads / math.ceil(heads / most)) if heads else 1
