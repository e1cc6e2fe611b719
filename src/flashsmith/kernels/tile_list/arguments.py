"""What the kernel that lists q tiles is told at run time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from flashsmith.kernels.arguments import Arguments, argument


@dataclass(frozen=True, slots=True)
class TileListArguments(Arguments):
    """Boundaries of sequences, where the list goes, and the tiles of the kernel that reads it."""

    CPP_TYPE: ClassVar[str] = "flashsmith::TileListArgs"

    cu_seqlens_q: int = argument(
        "const i32*", "where each sequence's rows begin; sequences + 1; null: in the batch"
    )
    cu_seqlens_k: int = argument(
        "const i32*", "where each sequence's keys begin; sequences + 1; null likewise"
    )
    list: int = argument("u64", "a header, and room for as many entries as there may be")
    items: int = argument("u64", "16 bytes a sequence, and two more")
    first_tiles: int = argument("i32*", "a word a sequence, and three more")
    sequences: int = argument("i32", "that are packed, or of the batch")
    q_len: int = argument("i32", "query rows of all packed sequences, or of one")
    k_len: int = argument("i32", "keys of all packed sequences, or of one")
    tile_q: int = argument("i32", "query rows of a tile")
    tile_k: int = argument("i32", "keys of a kv block")
    diagonal: int = argument("i32", "with causal, keys that a row sees behind where it stands")
    left_diagonal: int = argument("i32", "with a left edge, where its first key lies from there")
    position: int = argument("i32", "the key that row 0 stands at, from the alignment")
    bottom_right: int = argument("i32", "1: the last row stands at the last key; 0: the first both")
    section_bits: int = argument("i32", "2 to this: heads whose tiles are worked on together")
    q_lengths: int = argument("const i32*", "rows of each sequence that are used; or null")
    k_lengths: int = argument("const i32*", "behind the last key of each sequence; or null")
    k_starts: int = argument("const i32*", "the first key of each sequence; or null")
