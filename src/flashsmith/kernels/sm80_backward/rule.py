"""What the backward kernels on mma.sync would run where nothing was measured, best first."""

from __future__ import annotations

from collections.abc import Sequence

from flashsmith.arch import Arch
from flashsmith.kernels.sm80_backward.config import Sm80BackwardConfig
from flashsmith.kernels.sm80_backward.parts import WIDTHS
from flashsmith.kernels.sm80_backward.sets import configs_for
from flashsmith.problem.attention import AttentionProblem

SHORT_ROWS = 64  # lengths that one small tile covers: a large one would compute mostly padding


def candidates(problem: AttentionProblem, arch: Arch) -> Sequence[Sm80BackwardConfig]:
    """Configurations that compute `problem`, best first; not all of them need fit `arch`."""
    width = next((w for w in WIDTHS if w >= problem.d_head), None)
    if width is None:
        return ()
    configs = configs_for(problem.dtype, width)
    if problem.softcap is not None:  # 32 rows a warp and the slopes of their scores would spill
        configs.sort(key=lambda config: config.of_queries.rows_per_warp)
    if max(problem.q_len, problem.k_len) <= SHORT_ROWS:
        configs.sort(key=lambda config: config.dkv_keys)  # stable: the order within a size stays
    return configs
