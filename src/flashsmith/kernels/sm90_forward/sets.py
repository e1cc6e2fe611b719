"""The named sets of the forward kernel on wgmma: candidates for tuning, and the ladder."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from flashsmith.base.dtypes import DType
from flashsmith.kernels.kernel import KernelConfig
from flashsmith.kernels.short_form import parse_short_form
from flashsmith.kernels.sm90_forward.config import Sm90ForwardConfig

_TWO = "regs_232_40"
_MORE = "regs_224_56"  # for the producer: of a cluster with split tiles it spills 40
_THREE = "regs_160_32"
_LOOP = "overlap+early_rescale+tiles_DYNAMIC+late_draw+sections"
_SUM = f"{_LOOP}+stats_SUM+lazy_8"
# Tiles of a full mask are all as long: no draw is too early, and a fixed order needs no counter.
_SUM_DRAWN_EARLY = _SUM.replace("late_draw+", "")
_STATIC = "overlap+early_rescale+tiles_STATIC+stats_SUM+lazy_8"
_BITS = f"{_LOOP}+stats_BITS+lazy_8"
_VOTE = f"{_LOOP}+stats_VOTE+lazy_8"
_EARLY = "early_tiles+early_q"
_PING = "pingpong+o_smem"
_LATE = "early_tests+o_smem+late_store"
_WIDE = "early_tests+late_store"  # O does not fit beside Q, K and V; half of it beside less Q

# What is worth measuring, by (d_head, n_warpgroups, B_c); the usual winners first.
CANDIDATES: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        "64, 3, 128",
        (
            f"kv_3+q_6+{_SUM}+halves+l_mma+{_PING}+{_THREE}",
            f"kv_3+q_6+{_SUM}+halves+up_ALL+l_mma+{_PING}+{_THREE}",
            f"kv_3+q_6+{_SUM_DRAWN_EARLY}+halves+l_mma+{_PING}+{_THREE}",
            f"kv_3+q_6+{_SUM}+halves+{_PING}+{_THREE}",
            f"kv_2+q_6+{_SUM}+halves+{_PING}+{_THREE}",
            f"kv_2+q_6+{_SUM}+halves+l_mma+{_PING}+{_THREE}",
            f"kv_3+q_6+{_SUM}+halves+early_tests+{_PING}+{_THREE}",
            f"kv_4+q_6+{_BITS}+halves+early_tests+{_PING}+{_THREE}",
            f"kv_2+q_6+{_VOTE}+{_PING}+{_THREE}",
        ),
    ),
    (
        "96, 2, 128",
        (
            f"kv_2+q_4+{_SUM}+halves+pingpong+{_LATE}+{_TWO}",
            f"kv_2+q_4+{_BITS}+halves+{_LATE}+{_TWO}",
        ),
    ),
    ("96, 3, 80", (f"kv_2+q_6+{_BITS}+early_tests+o_smem+{_THREE}",)),
    (
        "128, 2, 128",
        (
            f"kv_2+q_4+{_SUM}+halves+pingpong+split+{_LATE}+{_TWO}",
            f"kv_2+q_4+{_SUM}+halves+pingpong+early_tests+o_smem+{_TWO}",
            f"kv_2+q_4+{_SUM}+halves+up_ALL+pingpong+early_tests+o_smem+hints+{_TWO}",
            f"kv_2+q_4+{_BITS}+halves+pingpong+{_LATE}+{_TWO}",
            f"kv_2+q_4+{_BITS}+halves+pingpong+{_LATE}+hints+{_TWO}",
            f"kv_2+q_4+{_SUM}+pingpong+{_LATE}+{_TWO}",
            f"kv_2+q_4+{_STATIC}+halves+pingpong+early_tests+o_smem+{_TWO}",
            f"kv_2+q_4+{_STATIC}+halves+pingpong+split+{_LATE}+{_TWO}",
            f"kv_2+q_4+{_STATIC}+cluster_2+{_LATE}+{_TWO}",
        ),
    ),
    (
        "128, 3, 80",
        (
            f"kv_2+q_6+{_BITS}+early_tests+o_smem+{_THREE}",
            f"kv_2+q_6+{_SUM}+pingpong+early_tests+split+o_smem+hints+{_THREE}",
            f"kv_2+q_6+{_SUM_DRAWN_EARLY}+pingpong+early_tests+split+o_smem+hints+{_THREE}",
        ),
    ),
    (
        "192, 2, 96",
        (
            f"kv_2+q_3+{_SUM}+{_WIDE}+hints+{_TWO}",
            f"kv_2+q_3+{_VOTE}+{_WIDE}+hints+{_TWO}",
        ),
    ),
    (
        "256, 2, 64",
        (
            f"kv_2+q_3+{_VOTE}+{_WIDE}+hints+{_TWO}",
            f"kv_2+q_3+{_SUM}+{_WIDE}+hints+{_TWO}",
            f"kv_2+q_2+{_SUM}+up_FIRST+early_tests+o_smem+o_halves+hints+{_TWO}",
            f"kv_2+q_3+{_BITS}+pingpong+{_WIDE}+hints+{_TWO}",
            f"kv_2+q_3+{_VOTE}+{_WIDE}+{_TWO}",
            f"kv_2+q_3+{_SUM}+cluster_2+{_EARLY}+{_WIDE}+{_TWO}",
            f"kv_2+q_3+{_SUM}+cluster_2+{_EARLY}+{_WIDE}+hints+{_TWO}",
            f"kv_2+q_3+{_STATIC}+cluster_2+{_EARLY}+{_WIDE}+{_TWO}",
            f"kv_2+q_3+{_STATIC}+cluster_2+{_EARLY}+split+{_WIDE}+{_MORE}",
            f"kv_2+q_3+{_STATIC}+{_EARLY}+{_WIDE}+hints+{_TWO}",
        ),
    ),
)
FP16_OF_EACH = 3  # both element types run the same instructions: the usual winners suffice

# Each step adds one idea to the one before.
LADDER = (
    "(BF16, 128, 1, 128): kv_2+q_1+o_smem+regs_240_56",
    "(BF16, 128, 1, 128): kv_2+q_1+overlap+o_smem+regs_240_56",
    "(BF16, 128, 2, 128): kv_2+q_2+overlap+o_smem+regs_232_40",
    "(BF16, 128, 2, 128): kv_2+q_2+overlap+pingpong+o_smem+regs_232_40",
    "(BF16, 128, 2, 128): kv_2+q_2+overlap+pingpong+early_rescale+o_smem+regs_232_40",
    "(BF16, 128, 2, 128): kv_2+q_2+overlap+pingpong+early_rescale+lazy_8+o_smem+regs_232_40",
    "(BF16, 128, 2, 128): kv_2+q_2+overlap+pingpong+early_rescale+stats_VOTE+lazy_8+o_smem"
    "+regs_232_40",
    "(BF16, 128, 2, 128): kv_2+q_2+overlap+early_rescale+stats_VOTE+lazy_8+cluster_2+o_smem"
    "+regs_232_40",
    "(BF16, 128, 2, 128): kv_2+q_4+overlap+early_rescale+stats_VOTE+lazy_8+tiles_DYNAMIC+sections"
    "+o_smem+late_store+regs_232_40",
    "(BF16, 128, 2, 128): kv_2+q_4+overlap+pingpong+early_rescale+stats_SUM+lazy_8+tiles_DYNAMIC"
    "+sections+o_smem+late_store+regs_232_40",
    "(BF16, 128, 2, 128): kv_2+q_4+overlap+pingpong+early_rescale+early_tests+stats_SUM+lazy_8"
    "+tiles_DYNAMIC+sections+o_smem+late_store+regs_232_40",
    "(BF16, 128, 2, 128): kv_2+q_4+overlap+pingpong+early_rescale+early_tests+stats_SUM+lazy_8"
    "+tiles_DYNAMIC+split+sections+o_smem+late_store+regs_232_40",
)


def get_hopper_tuning_configs() -> list[Sm90ForwardConfig]:
    """The candidates in BF16, and the first of each tile in FP16."""
    return [
        _parse(f"({dtype.name}, {head}): {words}")
        for dtype, count in ((DType.BF16, None), (DType.FP16, FP16_OF_EACH))
        for head, forms in CANDIDATES
        for words in forms[:count]
    ]


def get_hopper_progression_configs() -> list[Sm90ForwardConfig]:
    """The ladder, from one warpgroup to the full schedule."""
    return [_parse(text) for text in LADDER]


def _parse(text: str) -> Sm90ForwardConfig:
    return parse_short_form(f"{Sm90ForwardConfig.PREFIX}{text}", Sm90ForwardConfig)


NAMED_SETS: dict[str, Callable[[], Sequence[KernelConfig]]] = {
    "hopper": get_hopper_tuning_configs,
    "hopper-prog": get_hopper_progression_configs,
}
