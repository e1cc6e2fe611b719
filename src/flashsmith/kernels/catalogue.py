"""Every kernel there is, a class each; the rest of the package finds them here and names none."""

from __future__ import annotations

from flashsmith.kernels.block_list.config import BlockListConfig
from flashsmith.kernels.kernel import KernelConfig
from flashsmith.kernels.sm80_backward.config import Sm80BackwardConfig
from flashsmith.kernels.sm80_backward.parts import (
    Sm80DeltaConfig,
    Sm80KeyGradientsConfig,
    Sm80QueryGradientsConfig,
)
from flashsmith.kernels.sm80_decode.config import Sm80DecodeConfig
from flashsmith.kernels.sm80_forward.config import FlashForwardKernelConfig
from flashsmith.kernels.sm90_backward.config import Sm90BackwardConfig
from flashsmith.kernels.sm90_backward.parts import (
    Sm90ConvertConfig,
    Sm90QueriesConfig,
    Sm90RowsConfig,
    Sm90TilesConfig,
)
from flashsmith.kernels.sm90_decode.config import Sm90DecodeConfig
from flashsmith.kernels.sm90_forward.config import Sm90ForwardConfig
from flashsmith.kernels.tile_list.config import TileListConfig

# What computes an operation: a configuration of one of these makes a plan.
CATALOGUE: tuple[type[KernelConfig], ...] = (
    FlashForwardKernelConfig,
    Sm90ForwardConfig,
    Sm80BackwardConfig,
    Sm90BackwardConfig,
    Sm80DecodeConfig,
    Sm90DecodeConfig,
)
# Single launches of such plans: compiled and profiled under names of their own.
PARTS: tuple[type[KernelConfig], ...] = (
    TileListConfig,
    BlockListConfig,
    Sm80DeltaConfig,
    Sm80KeyGradientsConfig,
    Sm80QueryGradientsConfig,
    Sm90RowsConfig,
    Sm90TilesConfig,
    Sm90ConvertConfig,
    Sm90QueriesConfig,
)
