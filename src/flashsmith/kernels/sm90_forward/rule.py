"""What the forward kernel on wgmma and TMA would run where nothing was measured: best first."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from flashsmith.arch import Arch
from flashsmith.base.dtypes import DType
from flashsmith.kernels.short_form import parse_short_form
from flashsmith.kernels.sm90_forward.config import Sm90ForwardConfig
from flashsmith.problem.attention import AttentionProblem

WIDTHS = (64, 96, 128, 192, 256)  # the d_head that kernels are built for
SHORT_QUERIES = 64  # rows of one warpgroup: more of them would have none

_LOOP = "overlap+early_rescale+tiles_DYNAMIC+late_draw+sections"
_SUM = f"{_LOOP}+stats_SUM+lazy_8"
_ONE = "regs_240_56"
_TWO = "regs_232_40"
_THREE = "regs_160_32"

# Warpgroups, B_c and the words of the short form, by width; order of an H200 (2026-11).
_TALL = {
    64: (
        (3, 128, f"kv_3+q_6+{_SUM}+halves+pingpong+l_mma+o_smem+{_THREE}"),
        (3, 128, f"kv_3+q_6+{_SUM}+halves+pingpong+o_smem+{_THREE}"),
    ),
    96: (
        (2, 128, f"kv_2+q_4+{_SUM}+halves+pingpong+early_tests+o_smem+late_store+{_TWO}"),
        (3, 80, f"kv_2+q_6+{_LOOP}+stats_BITS+lazy_8+early_tests+o_smem+{_THREE}"),
    ),
    128: (
        (2, 128, f"kv_2+q_4+{_SUM}+halves+pingpong+early_tests+split+o_smem+late_store+{_TWO}"),
        (3, 80, f"kv_2+q_6+{_LOOP}+stats_BITS+lazy_8+early_tests+o_smem+{_THREE}"),
    ),
    192: ((2, 96, f"kv_2+q_3+{_SUM}+early_tests+late_store+hints+{_TWO}"),),
    256: (
        (2, 64, f"kv_2+q_3+{_SUM}+early_tests+split+late_store+hints+{_TWO}"),
        (2, 64, f"kv_2+q_3+{_LOOP}+stats_VOTE+lazy_8+early_tests+late_store+hints+{_TWO}"),
    ),
}
_SHORT = {
    64: (1, 128, f"kv_4+q_2+{_SUM}+o_smem+{_ONE}"),
    96: (1, 128, f"kv_3+q_1+{_SUM}+o_smem+{_ONE}"),
    128: (1, 128, f"kv_3+q_1+{_SUM}+{_ONE}"),
    192: (1, 96, f"kv_2+q_2+{_SUM}+{_ONE}"),
    256: (1, 64, f"kv_2+q_2+{_SUM}+{_ONE}"),
}


# With a bias: three warpgroups have no registers for its elements, ptxas spills.
_TALL_BIASED = {
    **{width: tuple(c for c in found if c[0] < 3) for width, found in _TALL.items()},
    64: ((2, 128, f"kv_2+q_4+{_SUM}+halves+pingpong+o_smem+{_TWO}"),),
}


def candidates(problem: AttentionProblem, arch: Arch) -> Sequence[Sm90ForwardConfig]:
    """Configurations that compute `problem`, best first; not all of them need fit `arch`."""
    width = next((w for w in WIDTHS if w >= problem.d_head), None)
    if width is None:
        return ()
    ranked = _ranked(problem.dtype, width, bool(problem.bias))
    if problem.q_len <= SHORT_QUERIES:
        return (ranked[-1], *ranked[:-1])
    return ranked


@cache
def _ranked(dtype: DType, width: int, has_bias: bool) -> tuple[Sm90ForwardConfig, ...]:
    tall = _TALL_BIASED if has_bias else _TALL
    return tuple(
        parse_short_form(
            f"{Sm90ForwardConfig.PREFIX}({dtype.name}, {width}, {warpgroups}, {b_c}): {words}",
            Sm90ForwardConfig,
        )
        for warpgroups, b_c, words in (*tall[width], _SHORT[width])
    )
