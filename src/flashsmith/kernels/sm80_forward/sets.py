"""The named sets of the mma.sync family: tuning grid, ladder, what is built, a smoke set."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence

from flashsmith.base.dtypes import DType
from flashsmith.base.loose_types import KnobValue
from flashsmith.kernels.kernel import KernelConfig
from flashsmith.kernels.short_form import parse_short_form
from flashsmith.kernels.sm80_forward.config import FlashForwardKernelConfig

TUNE_GRID: dict[str, tuple[KnobValue, ...]] = {
    "d_head": (128,),
    "B_r": (64, 128),
    "B_c": (32, 64),
    "n_warps": (4,),
    "async_copy": (True,),
    "eager_load_blocks": (True,),
    "swizzled": (True,),
    "Q_mma_load_K_tiles": (0, 2),
    "K_mma_load_K_tiles": (0, 2),
    "V_mma_load_K_tiles": (0, 2),
    "mma_double_buffer_loads": (True, False),
    "optimized_softmax": (True, False),
}

# Each step adds one idea to the one before; the last trades buffering for holding all of Q.
LADDER = (
    "async+load_0_0_0_tiles",
    "async+swizzled+load_0_0_0_tiles",
    "async+eager+swizzled+load_0_0_0_tiles",
    "async+eager+swizzled+load_2_2_2_tiles",
    "async+eager+swizzled+load_2_2_2_tiles+buffer",
    "async+eager+swizzled+load_2_2_2_tiles+buffer+opt_softmax",
    "async+eager+swizzled+load_0_2_2_tiles+opt_softmax",
)


def autotuning_grid(dtypes: Iterable[DType]) -> list[FlashForwardKernelConfig]:
    """Every point of the tuning grid, before any filter."""
    points = itertools.product(tuple(dtypes), *TUNE_GRID.values())
    names = ("dtype", *TUNE_GRID)
    return [FlashForwardKernelConfig.of(**dict(zip(names, point, strict=True))) for point in points]


def should_autotune_config(cfg: FlashForwardKernelConfig) -> bool:
    """Whether a configuration is worth measuring; `cfg.autotune_refusal()` says why not."""
    return cfg.autotune_refusal() is None


def get_autotuning_kernel_configs(
    dtypes: Sequence[DType] = (DType.BF16, DType.FP16),
) -> list[FlashForwardKernelConfig]:
    """The tuning grid less what the filters refuse."""
    return [config for config in autotuning_grid(dtypes) if should_autotune_config(config)]


def get_kernel_progression_configs(
    all_block_sizes: bool = False,
) -> list[FlashForwardKernelConfig]:
    """The ladder of optimisations, at one block size or at all that make sense."""
    blocks = [(64, 64, 4)]
    if all_block_sizes:
        blocks = [
            (b_r, b_c, warps)
            for b_r, b_c, warps in itertools.product((128, 64), (128, 64, 32), (4, 8))
            if not (b_r < 128 and warps == 8) and b_r >= b_c
        ]
    return [
        parse_short_form(f"(FP16, 128, {b_r}, {b_c}, {warps}): {step}", FlashForwardKernelConfig)
        for b_r, b_c, warps in blocks
        for step in LADDER
    ]


def get_kernels_to_build() -> list[FlashForwardKernelConfig]:
    """What an ahead-of-time build instantiates: tuning set and ladder, sorted, each once."""
    return sorted({*get_autotuning_kernel_configs(), *get_kernel_progression_configs()})


def smoke_configs() -> list[FlashForwardKernelConfig]:
    """A few configurations in which every knob takes more than one value."""
    lines = (
        "(FP16, 128, 64, 64, 4): load_0_0_0_tiles",
        "(BF16, 64, 64, 32, 4): async+swizzled+load_2_2_2_tiles",
        "(BF16, 128, 64, 64, 4): async+eager+swizzled+load_0_2_2_tiles+opt_softmax",
        "(FP16, 128, 128, 64, 8): async+eager+swizzled+load_2_2_2_tiles+buffer+opt_softmax",
        "(BF16, 256, 128, 32, 8): async+eager+swizzled+load_4_4_2_tiles+opt_softmax",
    )
    return [parse_short_form(line, FlashForwardKernelConfig) for line in lines]


NAMED_SETS: dict[str, Callable[[], Sequence[KernelConfig]]] = {
    "prog": get_kernel_progression_configs,
    "prog-all": lambda: get_kernel_progression_configs(all_block_sizes=True),
    "tune": get_autotuning_kernel_configs,
    "all": get_kernels_to_build,
    "smoke": smoke_configs,
}
