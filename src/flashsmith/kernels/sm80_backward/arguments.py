"""What the backward kernels on mma.sync are told at run time: one struct for all of a plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from flashsmith.kernels.arguments import Arguments, ScoresArg, TensorArg, argument

ROW_PADDING = 128  # query rows of a head in scratch: a multiple of every tile of rows


@dataclass(frozen=True, slots=True)
class BackwardArguments(Arguments):
    """Tensors by address and stride, then the numbers of the problem."""

    CPP_TYPE: ClassVar[str] = "flashsmith::BackwardArgs"

    q: TensorArg = argument("TensorArg", "(batch, q_len, heads, d_head)")
    k: TensorArg = argument("TensorArg", "(batch, k_len, kv_heads, d_head)")
    v: TensorArg = argument("TensorArg", "as k")
    o: TensorArg = argument("TensorArg", "as q; what the forward pass gave")
    d_o: TensorArg = argument("TensorArg", "as q; `do` is a word of C++")
    dq: TensorArg = argument("TensorArg", "as q")
    dk: TensorArg = argument("TensorArg", "as k")
    dv: TensorArg = argument("TensorArg", "as k")
    lse: int = argument("float*", "(batch, heads, q_len), contiguous; natural logarithm")
    dlse: int = argument("float*", "as lse: the gradient of it; or null")
    statistics: int = argument(
        "float*",
        "scratch: (batch, heads, padded_rows) pairs of numbers",
        then=("batch", "heads", "kv_heads", "q_len", "k_len", "d_head"),
    )
    padded_rows: int = argument("i32", f"q_len, rounded up to a multiple of {ROW_PADDING}")
    diagonal: int = argument(
        "i32", "with causal, row i sees key j when j <= i + diagonal", then=("scale_log2",)
    )
    left_diagonal: int = argument("i32", "with a left edge, row i sees key j when j >= i + this")
    softcap: float = argument("float", "what scores do not exceed, or 0")
    position: int = argument("i32", "the key that row 0 stands at; of a list: from the alignment")
    q_list: int = argument("u64", "scratch: q tiles of packed sequences; or 0")
    k_list: int = argument("u64", "scratch: kv blocks of packed sequences; or 0")
    alibi_slopes: int = argument("float*", "(sequences, heads); or null")
    bias: ScoresArg = argument("ScoresArg", "(batch, heads, q_len, k_len)", is_last=True)
    dbias: int = argument(
        "float*", "(bias_sequences, bias_heads, q_len, k_len), contiguous; or null", is_last=True
    )
    bias_sequences: int = argument("i32", "that have a bias of their own", is_last=True)
    bias_heads: int = argument("i32", "likewise, of a sequence", is_last=True)
    dq_sums: int = argument(
        "float*", "scratch: (batch, heads, padded_rows, width) in float32; or null", is_last=True
    )
    counters: int = argument(
        "u32*", "scratch: kv blocks drawn, then sums made; or null", is_last=True
    )
    n_counters: int = argument("i32", "all of them", is_last=True)
    section_heads: int = argument(
        "i32", "of K and V, whose kv blocks are drawn together", is_last=True
    )
