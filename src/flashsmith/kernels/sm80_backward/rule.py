"""What the backward kernels on mma.sync would run where nothing was measured, best first."""

from __future__ import annotations

import math
from collections.abc import Sequence

from flashsmith.arch import Arch
from flashsmith.kernels.sm80_backward.config import Sm80BackwardConfig
from flashsmith.kernels.sm80_backward.parts import WIDTHS
from flashsmith.kernels.sm80_backward.sets import (
    biased_configs_for,
    configs_for,
    free_sums_for,
    sums_for,
)
from flashsmith.kernels.sm80_backward.sums import Sm80SumsConfig
from flashsmith.problem.attention import AttentionProblem

SHORT_ROWS = 64  # lengths that one small tile covers: a large one would compute mostly padding
NARROW = 64
FEW_KEYS = 1024
LONG = 4096  # keys
SMS = 132  # of the GPU that was measured
DISTANCE = 2  # q tiles between a kv block and the next: 0.6 to 2.1, from heads that wait (H200)


def candidates(problem: AttentionProblem, arch: Arch) -> Sequence[Sm80BackwardConfig]:
    """Configurations that compute `problem`, best first; not all of them need fit `arch`."""
    width = next((w for w in WIDTHS if w >= problem.d_head), None)
    if width is None:
        return ()
    of_width = configs_for if problem.bias is None else biased_configs_for
    configs = of_width(problem.dtype, width)
    if problem.softcap is not None:  # 32 rows a warp and the slopes of their scores would spill
        configs.sort(key=lambda config: config.of_queries.rows_per_warp)
    if max(problem.q_len, problem.k_len) <= SHORT_ROWS:
        configs.sort(key=lambda config: config.dkv_keys)  # stable: the order within a size stays
    return configs


def sums_candidates(problem: AttentionProblem, arch: Arch) -> Sequence[Sm80SumsConfig]:
    """The same of those that add dQ up in memory, which are faster where nobody waits long.

    Times of 18 problems decide (H200, 2026-11).
    """
    width = next((w for w in WIDTHS if w >= problem.d_head), None)
    if width is None or max(problem.q_len, problem.k_len) <= SHORT_ROWS:
        return ()
    ordered = [
        config
        for config in sums_for(problem.dtype, width, _section_mb(problem, width))
        if _has_work_for_turns(config, problem)
    ]
    ordered.sort(key=lambda config: -_warps_at_once(config, arch))  # stable
    if problem.deterministic:
        return ordered
    is_long = problem.mask.hides and problem.k_len > LONG
    return [*free_sums_for(problem.dtype, width, 160 if is_long else 40), *ordered]


def _warps_at_once(config: Sm80SumsConfig, arch: Arch) -> int:
    """Warps that an SM has room for, as far as two for each of its schedulers."""
    ctas = arch.smem_per_sm // (config.smem_bytes() + arch.reserved_smem_per_block)
    return min(ctas * config.n_warps, 2 * arch.sub_partitions)


def _section_mb(problem: AttentionProblem, width: int) -> int:
    """Few heads at a time stay in L2; under a mask, blocks of few heads wait for each other."""
    if problem.mask.hides:
        return 160 if problem.k_len <= LONG else 320
    return 160 if width > NARROW and problem.k_len > FEW_KEYS else 40


def _has_work_for_turns(config: Sm80SumsConfig, problem: AttentionProblem) -> bool:
    """Whether kv blocks, which follow each other at a distance, keep all SMs busy meanwhile."""
    tiles = problem.group * math.ceil(problem.q_len / config.B_r)
    blocks = math.ceil(problem.k_len / config.B_c)
    steps = problem.kv_heads * problem.batch * blocks * tiles
    return steps >= SMS * (tiles + DISTANCE * blocks)
