"""The named set of the decode kernel on mma.sync: a few configurations for every head width."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from flashsmith.base.dtypes import DType
from flashsmith.kernels.kernel import KernelConfig
from flashsmith.kernels.short_form import parse_short_form
from flashsmith.kernels.sm80_decode.config import MMA_ROWS, Sm80DecodeConfig

# Where one sequence has its length in memory, 4 % faster (H200, 2026-11: h200_serve/serve.jsonl).
_QUICK = "quick_start+quick_end"


def _measured(slices: str) -> tuple[tuple[int, int, str], ...]:
    """Those of d_head 128 and few rows, which give the same bits; `rule` says where each is chosen.

    Deep rings for few slices, runs for some, more ctas for many; K and V that leave L2 first for
    calls that read little; parts that stay in L2 for many slices of much; one page looked up for a
    kv block where pages are whole ones.
    """
    deep, many = f"{slices}+stages_3+ctas_2", f"{slices}+stages_2+ctas_3"
    kinds = [f"{deep}{run}{first}" for run in ("", "+runs") for first in ("+evict_first", "")]
    kinds += [many, f"{many}+kept_parts"]
    words = [f"{kind}{page}" for page in ("", "+whole_pages") for kind in kinds]
    quick = [f"{word}+{_QUICK}" for word in words]
    return tuple((16, 4, word) for word in (*quick, f"{many}+persistent+quick_end"))


# By width and by rows of a request (q_len times group), at most: keys of a kv block, warps, words.
# Those of one slice, kv block and number of warps give the same bits; the first is for few slices,
# the next for many (H200, 2026-11: 2 % faster from a batch of 8 on), a persistent one for more than
# a launch should have ctas. More rows leave larger parts behind: slices are longer, and fewer.
# The last needs at most 99 KB of shared memory. Widths other than 128 have not been measured.
BY_WIDTH: dict[int, dict[int, tuple[tuple[int, int, str], ...]]] = {
    64: {
        4: (
            (32, 4, "slice_512+most_32+stages_3+ctas_2"),
            (32, 4, "slice_512+most_32+stages_2+ctas_3"),
            (32, 4, "slice_512+most_32+stages_2+ctas_3+persistent"),
        ),
        16: (
            (32, 4, "slice_1024+most_32+stages_3+ctas_2"),
            (32, 4, "slice_1024+most_32+stages_2+ctas_3"),
            (32, 4, "slice_1024+most_32+stages_2+ctas_3+persistent"),
        ),
        32: ((32, 4, "slice_1024+most_16+stages_4+ctas_2"),),
        64: ((32, 4, "slice_1024+most_16+stages_4+ctas_2"),),
    },
    128: {
        4: _measured("slice_512+most_32"),
        16: _measured("slice_1024+most_32"),
        32: ((16, 4, "slice_1024+most_16+stages_4+ctas_3"),),
        64: (
            (32, 4, "slice_1024+most_16+stages_4+ctas_2"),
            (16, 4, "slice_1024+most_16+stages_4+ctas_2"),
        ),
    },
    256: {
        4: (
            (16, 4, "slice_256+most_32+stages_3+ctas_1"),
            (16, 2, "slice_256+most_32+stages_2+ctas_2"),
        ),
        16: (
            (16, 4, "slice_512+most_32+stages_3+ctas_1"),
            (16, 2, "slice_512+most_32+stages_2+ctas_2"),
        ),
        32: (
            (16, 4, "slice_512+most_16+stages_4+ctas_1"),
            (16, 4, "slice_512+most_16+stages_2+ctas_1"),
        ),
        64: (
            (16, 4, "slice_512+most_16+stages_4+ctas_1"),
            (16, 4, "slice_512+most_16+stages_2+ctas_1"),
        ),
    },
}


def configs_for(dtype: DType, width: int, rows: int) -> list[Sm80DecodeConfig]:
    """The configurations of one element type, width and number of rows, deep rings first."""
    tile = max(rows, MMA_ROWS)
    return [
        parse_short_form(
            f"decode({dtype.name}, {width}, {tile}, {b_c}, {warps}): {words}", Sm80DecodeConfig
        )
        for b_c, warps, words in BY_WIDTH[width][rows]
    ]


def wide_config(config: Sm80DecodeConfig) -> Sm80DecodeConfig:
    """Of the same type and width, for sequences of many rows: by nothing else."""
    widest = max(BY_WIDTH[config.d_head])
    return configs_for(config.dtype, config.d_head, widest)[0]


def decode_configs() -> list[Sm80DecodeConfig]:
    """All of them."""
    dtypes = (DType.BF16, DType.FP16)
    return [
        config
        for dtype in dtypes
        for width, by_rows in BY_WIDTH.items()
        for rows in by_rows
        for config in configs_for(dtype, width, rows)
    ]


NAMED_SETS: dict[str, Callable[[], Sequence[KernelConfig]]] = {"decode": decode_configs}
