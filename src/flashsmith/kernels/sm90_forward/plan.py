"""How a problem is laid out for the forward kernel on wgmma and TMA: maps, tile order, splits."""

from __future__ import annotations

from dataclasses import dataclass

from flashsmith.kernels.arguments import TensorArg, TensorMapSpec
from flashsmith.kernels.block_list.plan import BlockLists
from flashsmith.kernels.kernel import KernelConfig
from flashsmith.kernels.launch import (
    SCRATCH,
    WORKSPACE,
    Call,
    Launch,
    LaunchGeometry,
    Plan,
    scores_arg,
)
from flashsmith.kernels.sm90_forward.arguments import (
    COUNTER_BYTES,
    FIRST_FLAG,
    LISTED_BYTES,
    LISTED_STAGE_BYTES,
    ForwardArguments,
)
from flashsmith.kernels.sm90_forward.config import (
    PANEL_COLUMNS,
    WARPGROUP_ROWS,
    WARPGROUP_THREADS,
    Ascending,
    Scheduler,
    Sm90ForwardConfig,
)
from flashsmith.kernels.sm90_forward.tile_order import UNORDERED, TileOrder, tile_order
from flashsmith.kernels.tile_list.plan import edges_of, list_bytes, list_launch, most_tiles
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.needs import Needs, needs_of
from flashsmith.problem.signature import FORWARD, TensorRole

LOG2_E = 1.4426950408889634
MOST_PARTS = 4  # of a tile: who ends it adds them up one after the other
LEAST_BLOCKS = 4  # of keys that a part is worth having for
LEAST_SAVED_KEYS = 900  # a block's; exchanging parts takes the time of some 800 (H200, 2026-11)
MAX_STRIDE_BYTES = 1 << 40  # of a tensor map: cuTensorMapEncodeTiled


@dataclass(frozen=True, slots=True)
class SplitTiles:
    """Which tiles of a launch are cut along the keys; see SplitRange in sm90/slices.cuh."""

    whole_tiles: int  # that come first
    ranges: int = 0  # of equal length, that the others are cut into
    blocks: int = 0  # of keys, of all tiles that are cut

    @property
    def drawn(self) -> int:
        """What blocks draw: whole tiles, then ranges."""
        return self.whole_tiles + self.ranges


@dataclass(frozen=True, slots=True)
class ForwardLaunch(Launch):
    """One launch of the kernel."""

    order: TileOrder = UNORDERED
    split: SplitTiles = SplitTiles(0)

    @property
    def block_lists(self) -> BlockLists:
        """The kv blocks that its tiles, or those of a cluster, see under a boolean mask."""
        return _block_lists(_own(self.config), self.problem)

    @property
    def q_tiles(self) -> int:
        """Tiles of one head, counted in whole clusters."""
        return _q_tiles(_own(self.config), self.problem)

    def arguments(self, call: Call) -> ForwardArguments:
        """The kernel's one parameter."""
        problem, config, maps = self.problem, _own(self.config), self._maps(call)
        batch_heads = problem.batch * problem.heads
        edges = edges_of(problem, is_listed=problem.is_listed)
        return ForwardArguments(
            q=maps["q"],
            k=maps["k"],
            v=maps["v"],
            o=maps["o"],
            o_direct=call["o"],
            lse=call["lse"].address if "lse" in call else 0,
            counter=call[WORKSPACE].address if WORKSPACE in call else 0,
            heads=problem.heads,
            kv_group=problem.group,
            q_len=problem.q_len,
            k_len=problem.k_len,
            d_head=problem.d_head,
            diagonal=edges.right,
            scale_log2=problem.softmax_scale * LOG2_E,
            batch_heads=batch_heads,
            q_tiles=_q_tiles(config, problem),
            tiles=_q_tiles(config, problem) * batch_heads,
            section_heads=self.order.section_heads,
            short_tiles=self.order.short_tiles,
            early_heads=self.order.early_heads,
            whole_tiles=self.split.whole_tiles,
            split_ranges=self.split.ranges,
            split_blocks=self.split.blocks,
            left_diagonal=edges.left,
            position=edges.position,
            sinks=call["sinks"].address if "sinks" in call else 0,
            alibi_slopes=call["alibi_slopes"].address if "alibi_slopes" in call else 0,
            tile_list=call[SCRATCH].address if problem.is_listed else 0,
            bias=scores_arg(self, call),
            v_width=problem.v_width,
            blocks=self.block_lists.arg(call),
        )

    def obstacle(self, call: Call) -> str:
        """Why a tensor map cannot describe these tensors, or an empty text."""
        for name, spec in self._maps(call).items():
            strides = spec.strides_bytes
            if any(not 0 < stride < MAX_STRIDE_BYTES or stride % 16 for stride in strides):
                return (
                    f"{name} has strides of {strides} bytes; a tensor map takes multiples of 16 "
                    f"from 16 to 2^40; copy it or use a kernel without TMA"
                )
        return ""

    def _maps(self, call: Call) -> dict[str, TensorMapSpec]:
        config = _own(self.config)
        box_rows = {"q": WARPGROUP_ROWS, "o": WARPGROUP_ROWS}
        return {
            role.name: _map(self.problem, role, call[role.name], box_rows.get(role.name, kv_rows))
            for kv_rows in (config.B_c // config.cluster,)
            for role in FORWARD.tensors
            if role.is_rows
        }


def _own(config: KernelConfig) -> Sm90ForwardConfig:
    assert isinstance(config, Sm90ForwardConfig)
    return config


def _block_lists(config: Sm90ForwardConfig, problem: AttentionProblem) -> BlockLists:
    """CTAs of a cluster share the keys that they load, and so the list."""
    return BlockLists(problem, config.tile_q * config.cluster, config.B_c)


def _map(
    problem: AttentionProblem, role: TensorRole, arg: TensorArg, box_rows: int
) -> TensorMapSpec:
    bytes_each = problem.dtype.bytes
    batch, rows, heads, d_head = role.rows_first(problem)
    dims = (d_head, rows, heads, batch)
    given = (arg.seq_stride, arg.head_stride, arg.batch_stride)
    strides = tuple(
        # A dimension of one element may have any stride; the map asks for a plausible one.
        stride * bytes_each if extent > 1 else d_head * bytes_each
        for stride, extent in zip(given, dims[1:], strict=True)
    )
    return TensorMapSpec(
        address=arg.address,
        element_bytes=bytes_each,
        dims=dims,
        strides_bytes=strides,
        box=(PANEL_COLUMNS, box_rows, 1, 1),
        is_bf16=problem.dtype.name == "BF16",
    )


def plan_forward(
    config: KernelConfig,
    problem: AttentionProblem,
    sm_count: int,
    order: TileOrder | None = None,
) -> Plan:
    """The launch of `config` on `problem`; `order` replaces the tile order that is the rule."""
    own = _own(config)
    rows = own.tile_q * own.cluster
    needs = needs_of(problem, tile_q=rows, tile_k=own.B_c, d_head=own.d_head)
    clusters = max(sm_count // own.cluster, 1)
    split = split_tiles(own, problem, needs, clusters)
    drawn_at_once = split.drawn
    if own.scheduler is not Scheduler.SINGLE:
        drawn_at_once = min(drawn_at_once, clusters)
    listed_bytes = LISTED_BYTES + LISTED_STAGE_BYTES * own.kv_stages if problem.is_listed else 0
    geometry = LaunchGeometry(
        grid=(drawn_at_once * own.cluster, 1, 1),
        threads=own.threads,
        smem_bytes=own.smem_bytes() + listed_bytes,
        cluster=own.cluster,
    )
    blocks = _block_lists(own, problem)
    launch = ForwardLaunch(
        own,
        problem,
        needs,
        geometry,
        workspace_bytes=_workspace_bytes(own, split),
        scratch_bytes=list_bytes(problem, rows) if problem.is_listed else blocks.n_bytes,
        sum_order=_sum_order(own, needs, split, drawn_at_once),
        ends_together=split.ranges > 0,
        order=order or tile_order(own, problem, _q_tiles(own, problem), sm_count),
        split=split,
    )
    if blocks.exist:
        return blocks.launch(needs), launch
    if not problem.is_listed:
        return (launch,)
    return list_launch(problem, needs, tile_q=rows, tile_k=own.B_c), launch


def _workspace_bytes(config: Sm90ForwardConfig, split: SplitTiles) -> int:
    """The counter of what is drawn, left zero as it was found, and parts of tiles."""
    if config.scheduler is not Scheduler.DYNAMIC and not split.ranges:
        return 0
    return COUNTER_BYTES + split.ranges * config.cluster * part_bytes(config)


def _sum_order(config: Sm90ForwardConfig, needs: Needs, split: SplitTiles, at_once: int) -> str:
    """Split tiles are added up part by part, and only the first tiles of CTAs may ascend."""
    if split.ranges:
        return f"{split.ranges} parts"
    some_ascend = "causal" in needs and "window_left" not in needs and "bias_bool" not in needs
    some_ascend = some_ascend and config.ascending is Ascending.FIRST
    return f"the first {at_once} ascend" if some_ascend and at_once < split.drawn else ""


def _q_tiles(config: Sm90ForwardConfig, problem: AttentionProblem) -> int:
    return -(-problem.q_len // (config.tile_q * config.cluster))


def split_tiles(
    config: Sm90ForwardConfig,
    problem: AttentionProblem,
    needs: Needs,
    clusters: int,
) -> SplitTiles:
    """The tiles that would not fill a last wave, cut so that all blocks end together.

    Under a mask the short tiles even that out already; kernels for narrower heads cannot.
    """
    tiles = _q_tiles(config, problem) * problem.batch * problem.heads
    if problem.is_listed:  # how many there are is in memory
        return SplitTiles(most_tiles(problem, config.tile_q * config.cluster) * problem.heads)
    whole = SplitTiles(tiles)
    if problem.bias == "bool":  # how many kv blocks a tile sees is in memory
        return whole
    if problem.is_batch_invariant:  # which tiles are cut, and where, follows from the batch
        return whole
    if not config.split_last or "causal" in needs or "window_left" in needs or "narrow_d" in needs:
        return whole
    tile_blocks, rest = -(-problem.k_len // config.B_c), tiles % clusters
    ranges = min(clusters, rest * MOST_PARTS, rest * tile_blocks // LEAST_BLOCKS)
    if (ranges - rest) * problem.k_len < LEAST_SAVED_KEYS * ranges:
        return whole
    flags = FIRST_FLAG + ranges * config.cluster * config.n_warpgroups
    if 4 * flags > COUNTER_BYTES or rest * tile_blocks * ranges >= 1 << 31:
        return whole
    return SplitTiles(tiles - rest, ranges, rest * tile_blocks)


def part_bytes(config: Sm90ForwardConfig) -> int:
    """A block's part of a tile in float32 with its row sums and maxima, as sm90/slices.cuh."""
    words = config.d_head // 2 + 4
    return 4 * words * WARPGROUP_THREADS * config.n_warpgroups
