"""What the backward kernels on wgmma would run where nothing was measured, best first."""

from __future__ import annotations

from collections.abc import Sequence

from flashsmith.arch import Arch
from flashsmith.kernels.sm90_backward.config import Sm90BackwardConfig
from flashsmith.kernels.sm90_backward.parts import WIDTHS
from flashsmith.kernels.sm90_backward.sets import configs_for
from flashsmith.problem.attention import AttentionProblem

ORDERED_WIDTH = 128  # from which on an ordered sum of dQ is the faster way
ORDERED_KEYS = 512  # up to which it is under a mask, too


def candidates(problem: AttentionProblem, arch: Arch) -> Sequence[Sm90BackwardConfig]:
    """The deterministic configuration that computes `problem`, or none.

    Its counters order the sums of dQ, one wait after the other: at width 64, and under a mask of
    more than a few blocks, the kernels on mma.sync are faster (benchmarks/results/h200/
    backward.jsonl).
    """
    width = next((w for w in WIDTHS if w >= problem.d_head), None)
    if width is None or not min(problem.q_len, problem.k_len):
        return ()
    if width < ORDERED_WIDTH or (problem.mask.hides and problem.k_len > ORDERED_KEYS):
        return ()
    return [config for config in configs_for(problem.dtype, width) if not config.unordered]
