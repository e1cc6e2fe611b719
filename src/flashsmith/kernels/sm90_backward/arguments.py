"""What the backward kernels on wgmma and TMA are told at run time: one struct for all of a plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from flashsmith.kernels.arguments import Arguments, TensorArg, TensorMapSpec, argument

# Shared memory of kernels whose kv blocks come from a list, as sm90/backward/listed.cuh has it: of
# a slot rows and lengths, of a tail what is cleared and a barrier, and which comes next.
LISTED_BYTES = 4 * 32 + 7 * (16 + 8) + 8


@dataclass(frozen=True, slots=True)
class Sm90BackwardArguments(Arguments):
    """Tensor maps, tensors by address and stride, scratch, then the numbers of the problem."""

    CPP_TYPE: ClassVar[str] = "flashsmith::Sm90BackwardArgs"
    CONSTANTS: ClassVar[Mapping[str, int]] = {"kBackwardListedBytes": LISTED_BYTES}

    q_map: TensorMapSpec = argument("TensorMap", "dimensions d_head, rows, heads, batch")
    k_map: TensorMapSpec = argument("TensorMap", "as q_map")
    v_map: TensorMapSpec = argument("TensorMap", "as q_map")
    d_o_map: TensorMapSpec = argument("TensorMap", "as q_map")
    o: TensorArg = argument("TensorArg", "(batch, q_len, heads, d_head); what forward gave")
    d_o: TensorArg = argument("TensorArg", "as o; `do` is a word of C++")
    dq: TensorArg = argument("TensorArg", "as o")
    dk: TensorArg = argument("TensorArg", "(batch, k_len, kv_heads, d_head)")
    dv: TensorArg = argument("TensorArg", "as dk")
    lse: int = argument("float*", "(batch, heads, q_len), contiguous; natural logarithm")
    dlse: int = argument("float*", "as lse: the gradient of it; or null")
    statistics: int = argument("float*", "scratch: of each q tile LSE and delta, as smem has them")
    dq_sums: int = argument("float*", "scratch: dQ in float32, 64 x 64 pieces as wgmma has them")
    counters: int = argument(
        "u32*",
        "scratch: kv blocks drawn, then a count of sums for each piece",
        then=("heads", "kv_heads", "kv_group", "q_len", "k_len", "d_head"),
    )
    diagonal: int = argument("i32", "with causal, row i sees key j when j <= i + diagonal")
    q_tiles: int = argument("i32", "of one head; of packed sequences, in scratch memory")
    kv_blocks: int = argument("i32", "of one head of K and V")
    all_kv_blocks: int = argument("i32", "of all heads and sequences")
    section_heads: int = argument("i32", "heads of K and V whose kv blocks are drawn together")
    n_counters: int = argument(
        "i32", "words of `counters`", then=("scale_log2", "minus_inverse_scale")
    )
    left_diagonal: int = argument("i32", "with a left edge, row i sees key j when j >= i + this")
    position: int = argument("i32", "the key that row 0 stands at, with slopes")
    alibi_slopes: int = argument("float*", "(sequences, heads); or null")
    short_blocks: int = argument("i32", "of a head, that are drawn behind all others")
    rising_heads: int = argument("i32", "the last of K and V, that add from the first block on")
    q_list: int = argument("u64", "scratch: q tiles of packed sequences; or 0")
    k_list: int = argument("u64", "scratch: their kv blocks; or 0")
    section_rows: int = argument("i32", "of packed sequences: rows of heads drawn together")
    softcap: float = argument("float", "what scores do not exceed, or 0")
    part_sums: int = argument(
        "float*", "scratch: dK and dV of parts of groups, by warps; or null", is_last=True
    )
    part_counters: int = argument("u32*", "of each of them: parts that it has", is_last=True)
    parts: int = argument("i32", "of a group", is_last=True)
    part_heads: int = argument("i32", "heads of Q of a part", is_last=True)
