"""The named set of the backward kernels on wgmma: every idea on, then each taken out alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from flashsmith.base.dtypes import DType
from flashsmith.kernels.kernel import KernelConfig
from flashsmith.kernels.short_form import parse_short_form
from flashsmith.kernels.sm90_backward.config import Sm90BackwardConfig

_ALL = "turns+fold+early_dv+late_fences"
# Of dS as many tiles as shared memory holds.
_BEGINS = {64: f"ds_2+{_ALL}", 128: f"ds_3+{_ALL}", 256: "ds_2+dq_red"}
# The first two are the rule's choices.
_ENDS = ("sections", "", "unordered", "dq_red+unordered")
BY_WIDTH = {
    width: tuple(
        f"{begin}+{end}".rstrip("+") for end in _ENDS if not ("dq_red" in begin and "dq_red" in end)
    )
    for width, begin in _BEGINS.items()
}


def configs_for(dtype: DType, width: int) -> list[Sm90BackwardConfig]:
    """The configurations of one element type and width, the deterministic ones first."""
    return [
        parse_short_form(f"hopper_bwd({dtype.name}, {width}): {words}", Sm90BackwardConfig)
        for words in BY_WIDTH[width]
    ]


def capped_configs_for(dtype: DType, width: int) -> list[Sm90BackwardConfig]:
    """Those for scores with a cap, which take no fold; none where they are refused without it."""
    configs = (replace(config, fold=False) for config in configs_for(dtype, width))
    return [config for config in configs if config.refusal() is None]


def hopper_backward_configs() -> list[Sm90BackwardConfig]:
    """All of them."""
    dtypes = (DType.BF16, DType.FP16)
    return [c for dtype in dtypes for width in BY_WIDTH for c in configs_for(dtype, width)]


NAMED_SETS: dict[str, Callable[[], Sequence[KernelConfig]]] = {
    "hopper-bwd": hopper_backward_configs
}
