"""The named set of the backward kernels on mma.sync: a few configurations for every head width."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from flashsmith.base.dtypes import DType
from flashsmith.kernels.kernel import KernelConfig
from flashsmith.kernels.short_form import parse_short_form
from flashsmith.kernels.sm80_backward.config import Sm80BackwardConfig

# Large tiles first, for 163 KB of shared memory and more; the last of each needs at most 99 KB,
# which every architecture gives a cta.
BY_WIDTH = {
    64: (
        "dkv_128_64_4+dq_128_64_4+dkv_buffer+dq_buffer",
        "dkv_128_64_8+dq_128_64_8+dkv_buffer+dq_buffer",
        "dkv_64_64_4+dq_64_64_4+dkv_buffer+dq_buffer",
    ),
    128: (
        "dkv_128_64_8+dq_128_64_8+dkv_buffer+dq_buffer",
        "dkv_128_64_8+dq_128_32_8+dq_buffer",
        "dkv_64_32_4+dq_64_64_4+dkv_buffer",
    ),
    256: (
        "dkv_128_32_8+dq_128_32_8+apart",
        "dkv_64_32_4+dq_64_64_4+dkv_buffer+apart",
        "dkv_64_32_4+dq_64_32_4+apart",
    ),
}


def configs_for(dtype: DType, width: int) -> list[Sm80BackwardConfig]:
    """The configurations of one element type and width, largest tiles first."""
    return [
        parse_short_form(f"bwd({dtype.name}, {width}): {words}", Sm80BackwardConfig)
        for words in BY_WIDTH[width]
    ]


def backward_configs() -> list[Sm80BackwardConfig]:
    """All of them."""
    dtypes = (DType.BF16, DType.FP16)
    return [c for dtype in dtypes for width in BY_WIDTH for c in configs_for(dtype, width)]


NAMED_SETS: dict[str, Callable[[], Sequence[KernelConfig]]] = {"bwd": backward_configs}
