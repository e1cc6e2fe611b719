"""Every kernel there is, a class each; the rest of the package finds them here and names none."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import overload

from flashsmith.kernels.kernel import KernelConfig

Family = type[KernelConfig]


class Catalogue(Sequence[Family]):
    """Classes by place: the module of each is imported when it is looked at, and no sooner."""

    def __init__(self, *places: str) -> None:
        """Takes `operation prefix folder.module Class` of each; `-` is a short form without one."""
        self._places = [tuple(place.split()) for place in places]

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, index: int) -> Family: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Family]: ...

    def __getitem__(self, index: int | slice) -> Family | Sequence[Family]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        module, name = self._places[index][2:]
        found: Family = getattr(import_module(f"flashsmith.kernels.{module}"), name)
        return found

    def of(self, operation: str) -> Sequence[Family]:
        """Those that compute an operation, or are launches of its plans."""
        return [self[i] for i, place in enumerate(self._places) if place[0] == operation]

    def written(self, prefix: str) -> Sequence[Family]:
        """That whose short forms begin with a prefix, if there is one."""
        return [self[i] for i, place in enumerate(self._places) if place[1] == prefix]


# What computes an operation: a configuration of one of these makes a plan.
CATALOGUE = Catalogue(
    "forward - sm80_forward.config FlashForwardKernelConfig",
    "forward hopper sm90_forward.config Sm90ForwardConfig",
    "backward bwd sm80_backward.config Sm80BackwardConfig",
    "backward bwd_sums sm80_backward.sums Sm80SumsConfig",
    "backward hopper_bwd sm90_backward.config Sm90BackwardConfig",
    "forward decode sm80_decode.config Sm80DecodeConfig",
    "forward hopper_decode sm90_decode.config Sm90DecodeConfig",
)
# Single launches of such plans: compiled and profiled under names of their own.
PARTS = Catalogue(
    "forward tile_list tile_list.config TileListConfig",
    "forward block_list block_list.config BlockListConfig",
    "backward bwd_delta sm80_backward.parts Sm80DeltaConfig",
    "backward bwd_dkv sm80_backward.parts Sm80KeyGradientsConfig",
    "backward bwd_dq sm80_backward.parts Sm80QueryGradientsConfig",
    "backward bwd_dbias sm80_backward.parts Sm80BiasGradientConfig",
    "backward bwd_blocks sm80_backward.sum_parts Sm80BlocksConfig",
    "backward bwd_rounding sm80_backward.sum_parts Sm80RoundingConfig",
    "backward hopper_bwd_rows sm90_backward.parts Sm90RowsConfig",
    "backward hopper_bwd_tiles sm90_backward.parts Sm90TilesConfig",
    "backward hopper_bwd_dq sm90_backward.parts Sm90ConvertConfig",
    "backward hopper_bwd_queries sm90_backward.parts Sm90QueriesConfig",
)
