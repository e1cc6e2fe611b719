"""How a problem is laid out for the forward kernel on mma.sync: one cta a tile of query rows."""

from __future__ import annotations

import math
from dataclasses import dataclass

from flashsmith.base.errors import ArgumentError
from flashsmith.kernels.block_list.lists import BlockLists
from flashsmith.kernels.edges import edges_of
from flashsmith.kernels.launch import (
    SCRATCH,
    Call,
    Launch,
    LaunchGeometry,
    Plan,
    scores_arg,
)
from flashsmith.kernels.sm80_forward.arguments import ForwardArguments
from flashsmith.kernels.sm80_forward.config import FlashForwardKernelConfig
from flashsmith.kernels.tile_list.sizes import list_bytes, most_tiles
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.needs import Needs, needs_of

MAX_GRID = 2**31 - 1  # ctas along x, on every architecture


@dataclass(frozen=True, slots=True)
class ForwardLaunch(Launch):
    """One launch of the kernel; it needs no memory of its own."""

    @property
    def block_lists(self) -> BlockLists:
        """The kv blocks that its tiles see under a boolean mask."""
        return BlockLists(self.problem, self.config.tile_q, self.config.tile_k)

    def arguments(self, call: Call) -> ForwardArguments:
        """The kernel's one parameter."""
        problem = self.problem
        edges = edges_of(problem, is_listed=problem.is_listed)
        return ForwardArguments(
            q=call["q"],
            k=call["k"],
            v=call["v"],
            o=call["o"],
            lse=call["lse"].address if "lse" in call else 0,
            diagonal=edges.right,
            left_diagonal=edges.left,
            position=edges.position,
            sinks=call["sinks"].address if "sinks" in call else 0,
            alibi_slopes=call["alibi_slopes"].address if "alibi_slopes" in call else 0,
            tile_list=call[SCRATCH].address if problem.is_listed else 0,
            bias=scores_arg(self, call),
            v_width=problem.v_width,
            blocks=self.block_lists.arg(call),
        )


def plan_forward(config: FlashForwardKernelConfig, problem: AttentionProblem) -> Plan:
    """The launch of `config` on `problem`; the order of the tiles is the kernel's business.

    Where rows of V are wider than a cta computes, ctas along y share them: each multiplies Q and K
    again.
    """
    tiles = math.ceil(problem.q_len / config.tile_q) * problem.batch
    if problem.is_listed:
        tiles = most_tiles(problem, config.tile_q)
    ctas = tiles * problem.heads
    if ctas > MAX_GRID:
        raise ArgumentError(
            f"{config.short_form()}: the problem has {ctas:,} tiles of {config.tile_q} query "
            f"rows, one launch takes {MAX_GRID:,}; split the batch."
        )
    needs = needs_of(problem, tile_q=config.tile_q, tile_k=config.tile_k, d_head=config.d_head)
    # Registers are short here: what lies in chunks is read by pairs.
    needs = Needs(tuple(name for name in needs if name != "bias_keys_chunks"))
    slices = math.ceil(problem.v_width / config.v_cols)
    geometry = LaunchGeometry((ctas, slices, 1), config.threads, config.smem_bytes())
    blocks = BlockLists(problem, config.tile_q, config.tile_k)
    if blocks.exist:
        launch = ForwardLaunch(config, problem, needs, geometry, scratch_bytes=blocks.n_bytes)
        from flashsmith.kernels.block_list.plan import lists_launch

        return lists_launch(blocks, needs), launch
    if not problem.is_listed:
        return (ForwardLaunch(config, problem, needs, geometry),)
    from flashsmith.kernels.tile_list.plan import list_launch

    scratch = list_bytes(problem, config.tile_q)
    return (
        list_launch(problem, needs, tile_q=config.tile_q, tile_k=config.tile_k),
        ForwardLaunch(config, problem, needs, geometry, scratch_bytes=scratch),
    )
