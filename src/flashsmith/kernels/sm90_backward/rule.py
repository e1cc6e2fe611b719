"""What the backward kernels on wgmma would run where nothing was measured, best first."""

from __future__ import annotations

import math
from collections.abc import Sequence

from flashsmith.arch import Arch
from flashsmith.kernels.sm90_backward.config import Sm90BackwardConfig
from flashsmith.kernels.sm90_backward.draw_order import walked_heads
from flashsmith.kernels.sm90_backward.parts import WIDTHS
from flashsmith.kernels.sm90_backward.sets import (
    FREE_FULL,
    FREE_HIDING,
    FULL,
    GROUPS,
    HIDING,
    LONG,
    ONE_BY_ONE,
    SECTIONS,
    capped_configs_for,
    configs_for,
)
from flashsmith.problem.attention import AttentionProblem

NARROW = 64  # d_head up to which sections pay under a mask too
SHORT = 2048  # keys up to which small sections are faster at d_head 128
# Keys up to which the same bits cost nothing, without a mask and under one, by width: few q tiles
# wait for each other, and nothing is cleared before. Of wide heads nothing is added at all.
ORDER_PAYS = {64: (1024, 1024), 128: (1024, 4096), 256: (math.inf, math.inf)}


def candidates(problem: AttentionProblem, arch: Arch) -> Sequence[Sm90BackwardConfig]:
    """The configurations that compute `problem`, or none; those in any order only where it is free.

    Times of 18 problems decide, of groups those of 43 (H200, 2026-11). Packed sequences have lists,
    whose order is one of two: sections pay but for wide heads under a mask, whose kv blocks have
    different lengths.
    """
    width = next((w for w in WIDTHS if w >= problem.d_head), None)
    if width is None or not min(problem.q_len, problem.k_len):
        return ()
    of_scores = configs_for if problem.softcap is None else capped_configs_for
    configs = of_scores(problem.dtype, width)
    hides = problem.mask.hides
    simple = [SECTIONS, ONE_BY_ONE]
    if width > NARROW and hides:
        simple.reverse()
    if hides:
        own, free = [HIDING], FREE_HIDING
    else:
        own, free = [LONG, FULL] if problem.k_len > SHORT else [FULL, LONG], FREE_FULL
    if problem.group > 1:
        own = [GROUPS[use] for use in own]
    uses = simple if problem.sequences else [*own, *simple]
    ordered = [configs[use] for use in uses if use in configs]
    if problem.deterministic or problem.sequences or not ordered or free not in configs:
        return ordered
    at = len(ordered) if _order_pays(problem, width, ordered[0]) else 0
    return [*ordered[:at], configs[free], *ordered[at:]]


def _order_pays(problem: AttentionProblem, width: int, first: Sm90BackwardConfig) -> bool:
    """Whether the same bits cost nothing, beside sums in any order, which know no parts of groups.

    `first`: what sums in order would take.
    """
    hides = problem.mask.hides
    if problem.k_len <= ORDER_PAYS[width][hides]:
        return True
    return problem.group > 1 and (hides or walked_heads(first, problem) < problem.group)
