"""What a decode kernel with TMA is told at run time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from flashsmith.kernels.arguments import TensorMapSpec, argument
from flashsmith.kernels.sm80_decode.arguments import DecodeArguments


@dataclass(frozen=True, slots=True)
class Sm90DecodeArguments(DecodeArguments):
    """What every decode kernel is told, and the tensor maps of the caches."""

    CPP_TYPE: ClassVar[str] = "flashsmith::Sm90DecodeArgs"

    box_rows: int = argument("i32", "of a copy: a kv block's, or a page's where it has fewer")
    k_map: TensorMapSpec = argument(
        "TensorMap", "dimensions d_head, rows, heads, batch or pages", is_last=True
    )
    v_map: TensorMapSpec = argument("TensorMap", "as k_map", is_last=True)
