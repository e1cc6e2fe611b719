"""The named set of the backward kernels on mma.sync: a few configurations for every head width."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from flashsmith.base.dtypes import DType
from flashsmith.kernels.kernel import KernelConfig
from flashsmith.kernels.short_form import parse_short_form
from flashsmith.kernels.sm80_backward.config import Sm80BackwardConfig
from flashsmith.kernels.sm80_backward.sums import Sm80SumsConfig

# Large tiles first, for 163 KB of shared memory and more; the last of each needs at most 99 KB,
# which every architecture gives a cta.
BY_WIDTH = {
    64: (
        "dkv_128_64_4+dq_128_64_4+dkv_buffer+dq_buffer",
        "dkv_128_64_8+dq_128_64_8+dkv_buffer+dq_buffer",
        "dkv_64_64_4+dq_64_64_4+dkv_buffer+dq_buffer",
    ),
    128: (
        "dkv_128_64_8+dq_128_32_4+dkv_buffer+dq_buffer",
        "dkv_128_64_8+dq_128_32_8+dq_buffer",
        "dkv_64_32_4+dq_64_64_4+dkv_buffer",
    ),
    256: (
        "dkv_128_32_8+dq_128_32_8+apart",
        "dkv_64_32_4+dq_64_64_4+dkv_buffer+apart",
        "dkv_64_32_4+dq_64_32_4+apart",
    ),
}

# For 128 columns and a bias of the caller's, in their place: 32 rows a warp and a bias of 16 bits
# would spill.
BIASED = "dkv_128_64_8+dq_128_64_8+dkv_buffer+dq_buffer"


def configs_for(dtype: DType, width: int) -> list[Sm80BackwardConfig]:
    """The configurations of one element type and width, largest tiles first."""
    return [_backward(dtype, width, words) for words in BY_WIDTH[width]]


def _backward(dtype: DType, width: int, words: str) -> Sm80BackwardConfig:
    return parse_short_form(f"bwd({dtype.name}, {width}): {words}", Sm80BackwardConfig)


def biased_configs_for(dtype: DType, width: int) -> list[Sm80BackwardConfig]:
    """The same for problems with a bias."""
    configs = configs_for(dtype, width)
    if width == 128:
        configs[0] = _backward(dtype, width, BIASED)
    return configs


def backward_configs() -> list[Sm80BackwardConfig]:
    """All of them."""
    dtypes = (DType.BF16, DType.FP16)
    return [c for dtype in dtypes for width in BY_WIDTH for c in configs_for(dtype, width)]


# Of kernels that add dQ up in memory, likewise: in order, and in any.
SUMS_BY_WIDTH = {
    64: ("128, 128, 4): rounds", "128, 64, 4): rounds"),
    128: (
        "128, 64, 8): roles+buffer+turn_2",
        "128, 64, 8): roles+turn_2",
        "64, 64, 4): roles+rounds",
    ),
    256: ("64, 64, 8): roles+buffer", "64, 64, 8): roles"),
}
FREE_SUMS = {64: "128, 128, 4): unordered", 128: "128, 64, 8): roles+buffer+unordered"}
SECTIONS = (40, 160, 320)  # MB


def sums_for(dtype: DType, width: int, section_mb: int) -> list[Sm80SumsConfig]:
    """The configurations with sums in order of one type and width, largest tiles first."""
    return [_sums(dtype, width, words, section_mb) for words in SUMS_BY_WIDTH[width]]


def free_sums_for(dtype: DType, width: int, section_mb: int) -> list[Sm80SumsConfig]:
    """Those with sums in any order; none at d_head 256.

    There they are faster without a mask alone (H200, 2026-11: h200_backward/mma.jsonl).
    """
    return [_sums(dtype, width, FREE_SUMS[width], section_mb)] if width in FREE_SUMS else []


def _sums(dtype: DType, width: int, words: str, section_mb: int) -> Sm80SumsConfig:
    config = parse_short_form(f"bwd_sums({dtype.name}, {width}, {words}", Sm80SumsConfig)
    return replace(config, section_mb=section_mb)


def sums_configs() -> list[Sm80SumsConfig]:
    """All of them."""
    return [
        config
        for dtype in (DType.BF16, DType.FP16)
        for width in SUMS_BY_WIDTH
        for section in SECTIONS
        for config in (*sums_for(dtype, width, section), *free_sums_for(dtype, width, section))
    ]


NAMED_SUMS: dict[str, Callable[[], Sequence[KernelConfig]]] = {"bwd-sums": sums_configs}
NAMED_SETS: dict[str, Callable[[], Sequence[KernelConfig]]] = {"bwd": backward_configs}
