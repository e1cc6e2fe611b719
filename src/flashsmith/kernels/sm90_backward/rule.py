"""What the backward kernels on wgmma would run where nothing was measured, best first."""

from __future__ import annotations

from collections.abc import Sequence

from flashsmith.arch import Arch
from flashsmith.kernels.sm90_backward.config import Sm90BackwardConfig
from flashsmith.kernels.sm90_backward.parts import WIDTHS
from flashsmith.kernels.sm90_backward.sets import configs_for
from flashsmith.problem.attention import AttentionProblem


def candidates(problem: AttentionProblem, arch: Arch) -> Sequence[Sm90BackwardConfig]:
    """The deterministic configurations that compute `problem`, or none.

    Under a mask kv blocks have different lengths: the longest come first.
    """
    width = next((w for w in WIDTHS if w >= problem.d_head), None)
    if width is None or not min(problem.q_len, problem.k_len):
        return ()
    ordered = [config for config in configs_for(problem.dtype, width) if not config.unordered]
    return sorted(ordered, key=lambda config: config.downwards != problem.mask.hides)
