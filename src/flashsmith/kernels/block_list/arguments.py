"""What the kernel that lists kv blocks is told at run time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from flashsmith.kernels.arguments import Arguments, ScoresArg, TensorArg, argument


@dataclass(frozen=True, slots=True)
class BlockListArguments(Arguments):
    """The mask, where the list goes, and the tiles of the kernel that reads it."""

    CPP_TYPE: ClassVar[str] = "flashsmith::BlockListArgs"

    bias: ScoresArg = argument("ScoresArg", "(batch, heads, q_len, k_len): bytes, 0 hides")
    blocks: TensorArg = argument("TensorArg", "the list; strides count words, a line a q tile")
    mask_heads: int = argument("i32", "heads with a mask of their own; 1 where all share one")
    q_tiles: int = argument("i32", "of one head", then=("q_len", "k_len"))
    tile_q: int = argument("i32", "query rows of a tile")
    tile_k: int = argument("i32", "keys of a kv block")
    diagonal: int = argument("i32", "with causal, row i sees key j when j <= i + diagonal")
    left_diagonal: int = argument("i32", "with a left edge, row i sees key j when j >= i + this")
