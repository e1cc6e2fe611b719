"""What a decode kernel is told at run time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from flashsmith.kernels.arguments import Arguments, TensorArg, argument


@dataclass(frozen=True, slots=True)
class DecodeArguments(Arguments):
    """Tensors by address and stride, memory for parts, then the numbers of the problem."""

    CPP_TYPE: ClassVar[str] = "flashsmith::DecodeArgs"

    q: TensorArg = argument("TensorArg", "(batch, q_len, heads, d_head)")
    k: TensorArg = argument(
        "TensorArg", "(batch, k_len, kv_heads, d_head), or (pages, page, kv_heads, d_head)"
    )
    v: TensorArg = argument("TensorArg", "as k")
    o: TensorArg = argument("TensorArg", "as q")
    lse: int = argument("float*", "(batch, heads, q_len), contiguous; natural logarithm; or null")
    parts: int = argument("float*", "scratch: O of every slice, (…, slices, part_rows, kernel's d)")
    statistics: int = argument("float*", "scratch: maxima and sums, (…, slices, part_rows, 2)")
    counters: int = argument("u32*", "workspace: slices that have ended, of every q tile")
    sinks: int = argument("float*", "(heads,), or null")
    alibi_slopes: int = argument("float*", "(sequences, heads), or null")
    k_lengths: int = argument("i32*", "(batch,): keys of each sequence; or null")
    block_table: int = argument("i32*", "(batch, table_pages): where a sequence's pages lie")
    first_batch: int = argument("i32", "the first sequence of this launch")
    batch: int = argument("i32", "sequences of this launch", then=("heads", "kv_heads"))
    group: int = argument("i32", "query heads that share one of K and V", then=("q_len",))
    k_len: int = argument(
        "i32", "keys, of a sequence that has no length of its own", then=("d_head",)
    )
    diagonal: int = argument("i32", "with causal, row i sees key j when j <= i + diagonal")
    left_diagonal: int = argument("i32", "with a left edge, row i sees key j when j >= i + this")
    position: int = argument("i32", "the key that row 0 stands at, from which distances count")
    follows_length: int = argument(
        "i32", "1: these three move with a sequence's own length", then=("scale_log2",)
    )
    q_tiles: int = argument("i32", "of the query rows that share a head of K and V")
    slices: int = argument("i32", "of a sequence, at most")
    slice_keys: int = argument("i32", "of a sequence that has no length of its own")
    part_rows: int = argument("i32", "rows of a q tile that exist, at most; packed: of all parts")
    page: int = argument("i32", "rows of a page")
    page_shift: int = argument("i32", "its logarithm; -1 where it is not a power of two")
    pages: int = argument("i32", "of the pool")
    table_pages: int = argument("i32", "of a sequence")
    cu_seqlens_q: int = argument("i32*", "(sequences + 1,): where packed rows begin; or null")
    sequences: int = argument("i32", "whose rows are packed; 0: a batch")
    outer: int = argument("i32", "2: rows before and behind all sequences are written too; or 0")
    least_rows: int = argument("i32", "packed, of all heads of a group: of a launch's sequences")
    most_rows: int = argument("i32", "the same; other sequences are another launch's")
