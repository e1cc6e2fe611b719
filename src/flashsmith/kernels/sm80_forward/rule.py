"""What the mma.sync family would run where nothing was measured: best first, small ones last."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from flashsmith.arch import Arch
from flashsmith.base.dtypes import DType
from flashsmith.kernels.short_form import parse_short_form
from flashsmith.kernels.sm80_forward.config import FlashForwardKernelConfig
from flashsmith.problem.attention import AttentionProblem

WIDTHS = (64, 128, 256, 512)  # the d_head that kernels are built for
SHORT_QUERIES = 64  # rows that one small q tile covers: a large one would compute mostly padding

# B_r, B_c, n_warps and the words of the short form, best first: by width of the kernel. The order
# at 64 and 128 is that of an H200 (2026-11: full and causal, lengths 1k, 4k and 16k). The last line
# of each up to 256 needs at most 64 KB of shared memory, which every architecture gives a cta. At
# 512 Q alone takes that; sm_80, sm_90a and sm_100a have the 112 KB of a cta.
_LARGE_FIRST = {
    64: (
        (128, 128, 4, "load_0_2_2_tiles+buffer+opt_softmax"),
        (128, 64, 4, "load_0_2_2_tiles+buffer+opt_softmax"),
        (64, 64, 4, "load_0_2_2_tiles+opt_softmax"),
    ),
    128: (
        (128, 64, 4, "load_2_2_2_tiles+buffer+opt_softmax"),
        (128, 32, 4, "load_2_2_2_tiles+buffer+opt_softmax"),
        (64, 64, 4, "load_0_2_2_tiles+opt_softmax"),
    ),
    256: (
        (128, 64, 8, "load_2_2_2_tiles+opt_softmax"),
        (64, 64, 4, "load_2_2_2_tiles+opt_softmax"),
        (64, 32, 4, "load_2_2_2_tiles+opt_softmax"),
    ),
    512: ((64, 32, 4, "load_2_2_2_tiles+opt_softmax"),),
}


def candidates(problem: AttentionProblem, arch: Arch) -> Sequence[FlashForwardKernelConfig]:
    """Configurations that compute `problem`, best first; not all of them need fit `arch`."""
    width = next((w for w in WIDTHS if w >= problem.d_head), None)
    if width is None:
        return ()
    return _ranked(problem.dtype, width, problem.q_len <= SHORT_QUERIES)


@cache
def _ranked(dtype: DType, width: int, is_short: bool) -> Sequence[FlashForwardKernelConfig]:
    configs = [
        parse_short_form(
            f"({dtype.name}, {width}, {b_r}, {b_c}, {warps}): async+eager+swizzled+{words}",
            FlashForwardKernelConfig,
        )
        for b_r, b_c, warps, words in _LARGE_FIRST[width]
    ]
    if is_short:
        configs.sort(key=lambda config: config.B_r)  # stable: the order within a B_r stays
    return tuple(configs)
