"""What a forward kernel on mma.sync is told at run time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from flashsmith.kernels.arguments import Arguments, ScoresArg, TensorArg, argument


@dataclass(frozen=True, slots=True)
class ForwardArguments(Arguments):
    """Tensors by address and stride, then the numbers of the problem."""

    CPP_TYPE: ClassVar[str] = "flashsmith::ForwardArgs"

    q: TensorArg = argument("TensorArg", "(batch, q_len, heads, d_head)")
    k: TensorArg = argument("TensorArg", "(batch, k_len, kv_heads, d_head)")
    v: TensorArg = argument("TensorArg", "as k")
    o: TensorArg = argument("TensorArg", "as q")
    lse: int = argument(
        "float*",
        "(batch, heads, q_len), contiguous; natural logarithm; or null",
        then=("batch", "heads", "kv_heads", "q_len", "k_len", "d_head"),
    )
    diagonal: int = argument(
        "i32", "with causal, row i sees key j when j <= i + diagonal", then=("scale_log2",)
    )
    left_diagonal: int = argument("i32", "with a left edge, row i sees key j when j >= i + this")
    position: int = argument("i32", "the key that row 0 stands at, from which distances count")
    sinks: int = argument("float*", "(heads,), or null")
    alibi_slopes: int = argument("float*", "(sequences, heads), or null")
    tile_list: int = argument("u64", "of sequences with lengths of their own; or 0")
    bias: ScoresArg = argument("ScoresArg", "(batch, heads, q_len, k_len)", is_last=True)
    v_width: int = argument(
        "i32", "columns of V and O; d_head where they are as many", is_last=True
    )
    blocks: TensorArg = argument(
        "TensorArg",
        "the kv blocks of q tiles under a boolean mask, in words",
        is_last=True,
    )
