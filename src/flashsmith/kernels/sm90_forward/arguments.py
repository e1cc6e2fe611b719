"""What a forward kernel on wgmma and TMA is told at run time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from flashsmith.kernels.arguments import Arguments, ScoresArg, TensorArg, TensorMapSpec, argument

COUNTER_BYTES = 16384  # tiles drawn, ctas that are done, and a flag for each part of a tile
FIRST_FLAG = 2  # words before the flags
# Shared memory of kernels whose tiles come from a list, as sm90/listed.cuh lays it out; and behind
# it that of kernels that read pages (sm90/page_orders.cuh).
LISTED_BYTES, LISTED_STAGE_BYTES = 4 * 32 + 24, 16
PAGED_STAGE_BYTES = 2 * 24


@dataclass(frozen=True, slots=True)
class ForwardArguments(Arguments):
    """Tensor maps, then addresses, then the numbers of the problem and of the order of tiles."""

    CPP_TYPE: ClassVar[str] = "flashsmith::Sm90ForwardArgs"
    CONSTANTS: ClassVar[Mapping[str, int]] = {
        "kCounterBytes": COUNTER_BYTES,
        "kFirstFlag": FIRST_FLAG,
        "kListedBytes": LISTED_BYTES,
        "kListedStageBytes": LISTED_STAGE_BYTES,
        "kPagedStageBytes": PAGED_STAGE_BYTES,
    }

    q: TensorMapSpec = argument("TensorMap", "dimensions d_head, rows, heads, batch")
    k: TensorMapSpec = argument("TensorMap", "as q")
    v: TensorMapSpec = argument("TensorMap", "as q")
    o: TensorMapSpec = argument("TensorMap", "as q")
    o_direct: TensorArg = argument("TensorArg", "for kernels that store O from registers")
    lse: int = argument("float*", "(batch, heads, q_len), contiguous; natural logarithm; or null")
    counter: int = argument(
        "u32*",
        "tiles drawn, ctas done, parts given; zero between launches",
        then=("heads", "kv_group", "q_len", "k_len", "d_head"),
    )
    diagonal: int = argument(
        "i32", "with causal, row i sees key j when j <= i + diagonal", then=("scale_log2",)
    )
    batch_heads: int = argument("i32", "batch * heads")
    q_tiles: int = argument("i32", "q tiles of one head, counted in whole clusters")
    tiles: int = argument("i32", "q_tiles * batch_heads")
    section_heads: int = argument("i32", "heads whose K and V stay in L2 together")
    short_tiles: int = argument("i32", "of each head, left to the end to even out when ctas finish")
    early_heads: int = argument("i32", "the first ones, whose short tiles are not left to the end")
    whole_tiles: int = argument("i32", "the first ones; the others may be split along the keys")
    split_ranges: int = argument("i32", "into so many ranges; or slices of all tiles, at most")
    split_blocks: int = argument("i32", "kv blocks of all ranges together; or of one slice")
    left_diagonal: int = argument("i32", "with a left edge, row i sees key j when j >= i + this")
    position: int = argument("i32", "the key that row 0 stands at, from which distances count")
    sinks: int = argument("float*", "(heads,), or null")
    alibi_slopes: int = argument("float*", "(sequences, heads), or null")
    scratch: int = argument("u64", "the list of tiles, or slices that are given away; or 0")
    bias: ScoresArg = argument("ScoresArg", "(batch, heads, q_len, k_len)", is_last=True)
    v_width: int = argument(
        "i32", "columns of V and O; d_head where they are as many", is_last=True
    )
    blocks: TensorArg = argument(
        "TensorArg",
        "the kv blocks of q tiles under a boolean mask, in words",
        is_last=True,
    )
    parts: int = argument(
        "u64", "slices that are given away, where tiles come from a list; or 0", is_last=True
    )
    most_slices: int = argument(
        "i32", "of a tile, where its sequence's length is in memory", is_last=True
    )
    least_keys: int = argument("i32", "of such a sequence, for its tiles to be cut", is_last=True)
    least_span: int = argument("i32", "kv blocks of its longest tile, for the same", is_last=True)
    block_table: int = argument("const i32*", "(batch, table_pages), or null", is_last=True)
    page: int = argument("i32", "rows of a page of K and V; 0: they lie in the batch", is_last=True)
    page_shift: int = argument("i32", "its logarithm; -1: not a power of two", is_last=True)
    pages: int = argument("i32", "of the pool", is_last=True)
    table_pages: int = argument("i32", "of a sequence", is_last=True)
    page_box: int = argument("i32", "rows of a box of a page; 0: its rows are copied", is_last=True)
    k_rows: TensorArg = argument("TensorArg", "where pages are copied by rows", is_last=True)
    v_rows: TensorArg = argument("TensorArg", "as k_rows", is_last=True)
