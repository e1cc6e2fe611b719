"""How a problem is laid out for the mma.sync family: one block of threads a tile of query rows."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass

from flashsmith.base.errors import ArgumentError
from flashsmith.kernels.kernel import KernelConfig
from flashsmith.kernels.launch import ForwardCall, LaunchGeometry, MapEncoder
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.needs import ForwardTraits

MAX_GRID = 2**31 - 1  # blocks along x, on every architecture
# ForwardArgs of cuda/include/flashsmith/sm80/args.cuh
_ARGS = struct.Struct("<" + 4 * "Qqqq" + "Q7if")


@dataclass(frozen=True, slots=True)
class MmaPlan:
    """One launch of an mma.sync kernel; needs no memory of its own."""

    traits: ForwardTraits
    geometry: LaunchGeometry
    numbers: tuple[int, int, int, int, int, int, int]  # the integers of ForwardArgs, in its order
    scale_log2: float
    workspace_bytes: int = 0
    ends_together: bool = False
    sum_order: str = ""

    def params(self, device: MapEncoder, call: ForwardCall) -> tuple[bytes, ...]:
        """The kernel's one parameter: ForwardArgs."""
        del device  # plain pointers are the same on every device
        tensors = [
            word
            for arg in (call.q, call.k, call.v, call.o)
            for word in (arg.address, arg.batch_stride, arg.seq_stride, arg.head_stride)
        ]
        return (_ARGS.pack(*tensors, call.lse, *self.numbers, self.scale_log2),)


def plan_mma(config: KernelConfig, problem: AttentionProblem, lse: bool, sm_count: int) -> MmaPlan:
    """The launch of `config` on `problem`; the order of the tiles is the kernel's business."""
    del sm_count  # every tile is a block
    blocks = math.ceil(problem.q_len / config.tile_q) * problem.heads * problem.batch
    if blocks > MAX_GRID:
        raise ArgumentError(
            f"{config.short_form()}: the problem has {blocks:,} tiles of {config.tile_q} query "
            f"rows, one launch takes {MAX_GRID:,}; split the batch."
        )
    # Past these bounds a diagonal masks nothing, or everything, and the kernel's 32-bit row
    # arithmetic stays exact within them.
    offset = problem.diagonal_offset if problem.causal else problem.k_len
    diagonal = max(-problem.q_len, min(offset, problem.k_len))
    return MmaPlan(
        traits=ForwardTraits(
            causal=problem.causal and diagonal < problem.k_len - 1,
            ragged_q=problem.q_len % config.tile_q != 0,
            ragged_k=problem.k_len % config.tile_k != 0,
            narrow_d=problem.d_head < config.d_head,
            lse=lse,
        ),
        geometry=LaunchGeometry(
            grid=(blocks, 1, 1), threads=config.threads, smem_bytes=config.smem_bytes()
        ),
        numbers=(
            problem.batch,
            problem.heads,
            problem.kv_heads,
            problem.q_len,
            problem.k_len,
            problem.d_head,
            diagonal,
        ),
        scale_log2=problem.softmax_scale * math.log2(math.e),
    )
