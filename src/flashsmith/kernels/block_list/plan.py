"""The launch that lists kv blocks."""

from __future__ import annotations

from dataclasses import dataclass

from flashsmith.base.errors import ArgumentError
from flashsmith.kernels.arguments import ScoresArg
from flashsmith.kernels.block_list.arguments import BlockListArguments
from flashsmith.kernels.block_list.config import BlockListConfig
from flashsmith.kernels.block_list.lists import BlockLists
from flashsmith.kernels.launch import Call, Launch, LaunchGeometry
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.needs import Needs
from flashsmith.problem.signature import BIAS

MAX_GRID = 2**31 - 1  # ctas along x, on every architecture


def lists_launch(lists: BlockLists, needs: Needs) -> BlockListLaunch:
    """What writes them, for a kernel that is compiled with `needs`: its masks come first."""
    config = BlockListConfig.of(n_threads=512)
    if lists.lines > MAX_GRID:
        raise ArgumentError(
            f"bias is a bool for {lists.lines:,} tiles of {lists.tile_q} query rows, one launch "
            f"takes {MAX_GRID:,}; split the batch."
        )
    return BlockListLaunch(
        config,
        lists.problem,
        Needs(tuple(name for name in needs if name in ("causal", "window_left"))),
        LaunchGeometry((lists.lines, 1, 1), config.threads, config.smem_bytes()),
        scratch_bytes=lists.n_bytes,
        tile_q=lists.tile_q,
        tile_k=lists.tile_k,
    )


@dataclass(frozen=True, slots=True)
class BlockListLaunch(Launch):
    """The launch that writes the list, for a kernel with these tiles."""

    tile_q: int = 1
    tile_k: int = 1

    def arguments(self, call: Call) -> BlockListArguments:
        """The kernel's one parameter."""
        problem, bias = self.problem, call[BIAS]
        assert isinstance(bias, ScoresArg)
        lists = BlockLists(problem, self.tile_q, self.tile_k)
        mask = problem.mask
        _require_shared(problem, bias)
        return BlockListArguments(
            bias=bias,
            blocks=lists.arg(call),
            mask_heads=lists.heads,
            q_tiles=lists.q_tiles,
            tile_q=self.tile_q,
            tile_k=self.tile_k,
            diagonal=mask.diagonal,
            left_diagonal=mask.left_diagonal,
        )


def _require_shared(problem: AttentionProblem, bias: ScoresArg) -> None:
    """Raises where a mask that is said to be one of all has a stride."""
    of_batch = problem.bias_shared in ("batch", "both") and problem.batch > 1
    of_heads = problem.bias_shared in ("heads", "both") and problem.heads > 1
    if (of_batch and bias.batch_stride) or (of_heads and bias.head_stride):
        raise ArgumentError(
            f"bias has strides {bias.batch_stride} and {bias.head_stride} of sequences and heads, "
            f"and bias_shared is {problem.bias_shared!r}; what is shared must have stride 0; "
            f"leave bias_shared out."
        )
