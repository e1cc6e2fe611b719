"""What the backward kernels on wgmma would run where nothing was measured, best first."""

from __future__ import annotations

from collections.abc import Sequence

from flashsmith.arch import Arch
from flashsmith.kernels.sm90_backward.config import Sm90BackwardConfig
from flashsmith.kernels.sm90_backward.parts import WIDTHS
from flashsmith.kernels.sm90_backward.sets import capped_configs_for, configs_for
from flashsmith.problem.attention import AttentionProblem

NARROW = 64  # d_head up to which sections pay under a mask too


def candidates(problem: AttentionProblem, arch: Arch) -> Sequence[Sm90BackwardConfig]:
    """The configurations that compute `problem`, or none; those in any order only where it is free.

    Sections pay (H200, 2026-11: 24 problems) but for wide heads under a mask, whose kv blocks have
    different lengths: there one head after the other is 4 to 7 % faster. The widest heads, which
    nobody has measured, follow those of 128.
    """
    width = next((w for w in WIDTHS if w >= problem.d_head), None)
    if width is None or not min(problem.q_len, problem.k_len):
        return ()
    of_scores = configs_for if problem.softcap is None else capped_configs_for
    configs = of_scores(problem.dtype, width)
    one_by_one = width > NARROW and problem.mask.hides
    ordered = [config for config in configs if config.repeats_bits]
    ordered.sort(key=lambda config: config.sections == one_by_one)
    if problem.deterministic:
        return ordered
    # Sums from registers are faster for narrow heads, 3,120 cycles a step against 3,151, and slower
    # for wide ones, 3,090 against 2,867 (H200, 2026-11).
    free = [config for config in configs if not config.repeats_bits]
    free.sort(key=lambda config: config.dq_red != (width <= NARROW))
    return [*free, *ordered]
