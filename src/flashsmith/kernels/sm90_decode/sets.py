"""The named set of the decode kernel with TMA: for every configuration of sm_80 one like it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields

from flashsmith.kernels.kernel import KernelConfig
from flashsmith.kernels.sm80_decode.config import Sm80DecodeConfig
from flashsmith.kernels.sm80_decode.sets import decode_configs
from flashsmith.kernels.sm90_decode.config import Sm90DecodeConfig


def like(config: Sm80DecodeConfig) -> Sm90DecodeConfig:
    """The configuration of the same tiles, slices and rings, which gives the same bits.

    A box is a page, or a kv block of one: they need no word for it.
    """
    same = {f.name: getattr(config, f.name) for f in fields(config)}
    return Sm90DecodeConfig(**(same | {"whole_pages": False}))


def hopper_decode_configs() -> list[Sm90DecodeConfig]:
    """All of them."""
    return list(dict.fromkeys(like(config) for config in decode_configs() if not config.runs))


NAMED_SETS: dict[str, Callable[[], Sequence[KernelConfig]]] = {
    "hopper-decode": hopper_decode_configs
}
