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
    k: TensorArg = argument("TensorArg", "(batch, k_len, kv_heads, d_head)")
    v: TensorArg = argument("TensorArg", "as k")
    o: TensorArg = argument("TensorArg", "as q")
    lse: int = argument("float*", "(batch, heads, q_len), contiguous; natural logarithm; or null")
    parts: int = argument("float*", "scratch: O of every slice, (…, slices, part_rows, kernel's d)")
    statistics: int = argument("float*", "scratch: maxima and sums, (…, slices, part_rows, 2)")
    counters: int = argument("u32*", "workspace: slices that have ended, of every q tile")
    first_batch: int = argument("i32", "the first sequence of this launch")
    batch: int = argument("i32", "sequences of this launch")
    heads: int = argument("i32", "query heads")
    kv_heads: int = argument("i32", "divides heads")
    group: int = argument("i32", "query heads that share one of K and V")
    q_len: int = argument("i32", "query rows")
    k_len: int = argument("i32", "keys")
    d_head: int = argument("i32", "of the problem; at most the kernel's")
    diagonal: int = argument("i32", "with causal, row i sees key j when j <= i + diagonal")
    scale_log2: float = argument("float", "softmax scale times log2(e)")
    q_tiles: int = argument("i32", "of the query rows that share a head of K and V")
    slices: int = argument("i32", "of k_len keys")
    part_rows: int = argument("i32", "rows of a q tile that exist, at most")
