"""How a problem is laid out for the forward kernel on wgmma and TMA: maps, tile order, splits."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

from flashsmith.kernels.arguments import TensorArg, TensorMapSpec, maps_obstacle
from flashsmith.kernels.block_list.lists import BlockLists
from flashsmith.kernels.edges import edges_of
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
from flashsmith.kernels.paging import page_box, page_shift
from flashsmith.kernels.sm90_forward.arguments import (
    COUNTER_BYTES,
    FIRST_FLAG,
    LISTED_BYTES,
    LISTED_STAGE_BYTES,
    PAGED_STAGE_BYTES,
    ForwardArguments,
)
from flashsmith.kernels.sm90_forward.config import (
    PANEL_COLUMNS,
    WARPGROUP_ROWS,
    WARPGROUP_THREADS,
    Ascending,
    Scheduler,
    Sm90ForwardConfig,
    Statistics,
)
from flashsmith.kernels.sm90_forward.slices import (
    filling_slices,
    invariant_slices,
    is_sliced,
    least_keys,
    least_span,
    most_given,
    most_invariant,
    q_tiles,
)
from flashsmith.kernels.sm90_forward.tile_order import UNORDERED, TileOrder, tile_order
from flashsmith.kernels.tile_list.sizes import list_bytes, most_tiles
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.needs import Needs, needs_of
from flashsmith.problem.signature import FORWARD, TensorRole

if TYPE_CHECKING:
    from flashsmith.kernels.tile_list.plan import TileListLaunch

MOST_PARTS = 4  # of a tile: who ends it adds them up one after the other
LEAST_BLOCKS = 4  # of keys that a part is worth having for
MOST_POOL_BYTES = 2**32 * 16  # of pages whose rows are copied: as many chunks of 16 bytes
PART_ALIGNMENT = 128  # bytes
LEAST_SAVED_KEYS = 900  # a cta's; exchanging parts takes the time of some 800 (H200, 2026-11)


@dataclass(frozen=True, slots=True)
class SplitTiles:
    """Which tiles of a launch are cut along the keys; see SplitRange in sm90/tile_order.cuh.

    Or all of them are, each into slices of its own: then a range is a slice.
    """

    whole_tiles: int  # that come first
    ranges: int = 0  # of equal length, that the others are cut into
    blocks: int = 0  # of keys, of all tiles that are cut; or of one slice
    slices: int = 0  # of the longest tile, where every tile has its own

    @property
    def given(self) -> int:
        """Parts of tiles that have a place of their own, at most."""
        return self.ranges // self.slices * (self.slices - 1) if self.slices else self.ranges

    @property
    def drawn(self) -> int:
        """What ctas draw: whole tiles, then ranges."""
        return self.whole_tiles + self.ranges


@dataclass(frozen=True, slots=True)
class ForwardLaunch(Launch):
    """One launch of the kernel."""

    order: TileOrder = UNORDERED
    split: SplitTiles = SplitTiles(0)
    first_batch: int = 0  # of the call, that this launch begins with

    @property
    def block_lists(self) -> BlockLists:
        """The kv blocks that its tiles, or those of a cluster, see under a boolean mask."""
        return _block_lists(_own(self.config), self.problem)

    @property
    def q_tiles(self) -> int:
        """Tiles of one head, counted in whole clusters."""
        return q_tiles(_own(self.config), self.problem)

    def arguments(self, call: Call) -> ForwardArguments:
        """The kernel's one parameter."""
        call = self._from_first(call)
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
            diagonal=edges.right,
            batch_heads=batch_heads,
            q_tiles=q_tiles(config, problem),
            tiles=q_tiles(config, problem) * batch_heads,
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
            scratch=call[SCRATCH].address if self.scratch_bytes else 0,
            bias=scores_arg(self, call),
            v_width=problem.v_width,
            blocks=self.block_lists.arg(call),
            parts=call[SCRATCH].address + _parts_at(config, problem) if self.split.slices else 0,
            most_slices=most_invariant(config, problem),
            least_keys=least_keys(problem),
            least_span=least_span(config, problem),
            block_table=call["block_table"].address if "block_table" in call else 0,
            page=problem.page,
            page_shift=page_shift(problem.page),
            pages=problem.pages,
            table_pages=problem.table_pages,
            page_box=page_box(problem.page, config.B_c),
            k_rows=call["k"],
            v_rows=call["v"],
        )

    def obstacle(self, call: Call) -> str:
        """Why a tensor map cannot describe these tensors, or copied rows lie too far apart."""
        return maps_obstacle(self._maps(call)) or self._rows_obstacle(call)

    def _rows_obstacle(self, call: Call) -> str:
        """Where a row of a pool lies is told as a 32-bit number of chunks."""
        if not self.problem.page:
            return ""
        for name in "kv":
            role = next(role for role in FORWARD.tensors if role.name == name)
            pages, rows, heads, d_head = role.rows_first(self.problem)
            arg = call[name]
            strides = ((pages, arg.batch_stride), (rows, arg.seq_stride), (heads, arg.head_stride))
            elements = sum((count - 1) * stride for count, stride in strides) + d_head
            if elements * self.problem.dtype.bytes > MOST_POOL_BYTES:
                return (
                    f"{name} spans {elements * self.problem.dtype.bytes} bytes; pages of a tensor "
                    f"of at most {MOST_POOL_BYTES} can be read"
                )
        return ""

    def _from_first(self, call: Call) -> Call:
        """Where the tensors of this launch begin: those that have a part for every sequence."""
        if self.first_batch == 0:
            return call
        moved = dict(call)
        for role in FORWARD.of(self.problem):
            at, elements = call[role.name], 0
            if self.problem.page and role.name in ("k", "v"):
                continue  # one pool for all sequences
            if role.is_rows or role.is_scores:
                elements = at.batch_stride
            elif role.is_statistics or role.of[0] in ("batch", "requests"):
                elements = math.prod(role.shape(self.problem)[1:])
            n_bytes = self.first_batch * elements * role.element_bytes(self.problem)
            moved[role.name] = replace(at, address=at.address + n_bytes)
        return moved

    def _maps(self, call: Call) -> dict[str, TensorMapSpec]:
        config = _own(self.config)
        box_rows = {"q": WARPGROUP_ROWS, "o": WARPGROUP_ROWS}
        kv_rows = config.B_c // config.cluster
        if self.problem.page:
            kv_rows = page_box(self.problem.page, config.B_c) or min(self.problem.page, config.B_c)
        return {
            role.name: _map(self.problem, role, call[role.name], box_rows.get(role.name, kv_rows))
            for role in FORWARD.tensors
            if role.is_rows
        }


def _own(config: KernelConfig) -> Sm90ForwardConfig:
    assert isinstance(config, Sm90ForwardConfig)
    return config


def _block_lists(config: Sm90ForwardConfig, problem: AttentionProblem) -> BlockLists:
    """Ctas of a cluster share the keys that they load, and so the list."""
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
    """The launches of `config` on `problem`; `order` replaces the tile order that is the rule.

    There is one, after a list of packed sequences, unless the slices of a batch have too few flags.
    """
    own = _own(config)
    rows = own.tile_q * own.cluster
    needs = needs_of(problem, tile_q=rows, tile_k=own.B_c, d_head=own.d_head)
    if is_sliced(own, problem, needs):
        needs = Needs((*needs, "sliced"))
        at_once = _batch_at_once(own, problem)
        if at_once < problem.batch:
            return _launches_of_batch(own, problem, sm_count, order, at_once)
    clusters = max(sm_count // own.cluster, 1)
    split = split_tiles(own, problem, needs, clusters)
    drawn_at_once = split.drawn
    if own.scheduler is not Scheduler.SINGLE:
        drawn_at_once = min(drawn_at_once, clusters)
    listed_bytes = LISTED_BYTES + LISTED_STAGE_BYTES * own.kv_stages if problem.is_listed else 0
    if problem.page:
        listed_bytes += PAGED_STAGE_BYTES * own.kv_stages
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
        scratch_bytes=_scratch_bytes(own, problem, split) or blocks.n_bytes,
        sum_order=_sum_order(own, needs, split, drawn_at_once),
        ends_together=split.ranges > 0,
        cut=_cut(own, problem, split),
        order=order or tile_order(own, problem, q_tiles(own, problem), sm_count),
        split=split,
    )
    if blocks.exist:
        from flashsmith.kernels.block_list.plan import lists_launch

        return lists_launch(blocks, needs), launch
    if not problem.is_listed:
        return (launch,)
    from flashsmith.kernels.tile_list.plan import list_launch

    return list_launch(problem, needs, tile_q=rows, tile_k=own.B_c), launch


def _batch_at_once(config: Sm90ForwardConfig, problem: AttentionProblem) -> int:
    """Sequences of a launch where the cut must be the same in every batch: of others, all."""
    if not problem.is_batch_invariant:
        return problem.batch
    tiles = q_tiles(config, problem) * problem.heads
    given = tiles * (invariant_slices(config, problem).count - 1)
    return max(most_given(config) // max(given, 1), 1)


def _launches_of_batch(
    config: Sm90ForwardConfig,
    problem: AttentionProblem,
    sm_count: int,
    order: TileOrder | None,
    at_once: int,
) -> Plan:
    launches = [
        replace(cast("ForwardLaunch | TileListLaunch", launch), first_batch=first)
        for first in range(0, problem.batch, at_once)
        for part in (replace(problem, batch=min(at_once, problem.batch - first)),)
        for launch in plan_forward(config, part, sm_count, order)
    ]
    scratch = max(launch.scratch_bytes for launch in launches)
    return tuple(replace(launch, scratch_bytes=scratch) for launch in launches)


def _workspace_bytes(config: Sm90ForwardConfig, split: SplitTiles) -> int:
    """The counter of what is drawn, left zero as it was found, and parts of tiles."""
    if config.scheduler is not Scheduler.DYNAMIC and not split.ranges:
        return 0
    if split.slices:
        return COUNTER_BYTES
    return COUNTER_BYTES + split.ranges * config.cluster * part_bytes(config)


def _scratch_bytes(config: Sm90ForwardConfig, problem: AttentionProblem, split: SplitTiles) -> int:
    """The list of tiles, and slices that are given away."""
    given = split.given * config.cluster * part_bytes(config) if split.slices else 0
    return _parts_at(config, problem) + given if given else _list_bytes(config, problem)


def _list_bytes(config: Sm90ForwardConfig, problem: AttentionProblem) -> int:
    return list_bytes(problem, config.tile_q * config.cluster) if problem.is_listed else 0


def _parts_at(config: Sm90ForwardConfig, problem: AttentionProblem) -> int:
    """Where slices lie that are given away: behind the list of tiles."""
    return math.ceil(_list_bytes(config, problem) / PART_ALIGNMENT) * PART_ALIGNMENT


def _sum_order(config: Sm90ForwardConfig, needs: Needs, split: SplitTiles, at_once: int) -> str:
    """Split tiles are added up part by part, and only the first tiles of ctas may ascend."""
    if split.slices:
        return f"slices of {split.blocks} kv blocks"
    if split.ranges:
        return f"{split.ranges} parts"
    some_ascend = "causal" in needs and "window_left" not in needs and "bias_bool" not in needs
    some_ascend = some_ascend and config.ascending is Ascending.FIRST
    return f"the first {at_once} ascend" if some_ascend and at_once < split.drawn else ""


def _cut(config: Sm90ForwardConfig, problem: AttentionProblem, split: SplitTiles) -> str:
    if not split.slices:
        return ""
    keys = f"{split.blocks * config.B_c:,}"
    if problem.is_listed:
        return (
            f"up to {split.slices} slices of {keys} keys or more for a q tile, by its own sequence "
            f"and the kernel alone"
        )
    cut = f"{split.slices} slices of {keys} keys for a q tile"
    if problem.is_batch_invariant:
        return f"{cut}, by its own sequence and the kernel alone"
    return f"{cut}; other batches, heads or SMs, other slices and bits"


def split_tiles(
    config: Sm90ForwardConfig,
    problem: AttentionProblem,
    needs: Needs,
    clusters: int,
) -> SplitTiles:
    """The tiles that would not fill a last wave, cut so that all ctas end together.

    Under a mask the short tiles even that out already; kernels for narrower heads cannot.
    """
    tiles = q_tiles(config, problem) * problem.batch * problem.heads
    if "sliced" in needs:
        return _sliced_tiles(config, problem, tiles, clusters)
    if problem.is_listed:  # how many there are is in memory
        return SplitTiles(most_tiles(problem, config.tile_q * config.cluster) * problem.heads)
    whole = SplitTiles(tiles)
    if problem.bias == "bool":  # how many kv blocks a tile sees is in memory
        return whole
    if problem.is_batch_invariant:  # which tiles are cut, and where, follows from the batch
        return whole
    if not config.split_last or "causal" in needs or "window_left" in needs or "narrow_d" in needs:
        return whole
    if "alibi" in needs and config.statistics is Statistics.SUM:  # tiles begin near their rows
        return whole
    tile_blocks, rest = -(-problem.k_len // config.B_c), tiles % clusters
    ranges = min(clusters, rest * MOST_PARTS, rest * tile_blocks // LEAST_BLOCKS)
    if (ranges - rest) * problem.k_len < LEAST_SAVED_KEYS * ranges:
        return whole
    flags = FIRST_FLAG + ranges * config.cluster * config.n_warpgroups
    if 4 * flags > COUNTER_BYTES or rest * tile_blocks * ranges >= 1 << 31:
        return whole
    return SplitTiles(tiles - rest, ranges, rest * tile_blocks)


def _sliced_tiles(
    config: Sm90ForwardConfig, problem: AttentionProblem, tiles: int, clusters: int
) -> SplitTiles:
    if problem.is_batch_invariant:
        cut = invariant_slices(config, problem)
    else:
        cut = filling_slices(config, problem, clusters)
    if cut.count == 1:
        return SplitTiles(tiles)
    return SplitTiles(0, tiles * cut.count, cut.blocks, cut.count)


def part_bytes(config: Sm90ForwardConfig) -> int:
    """A cta's part of a tile in float32 with its row sums and maxima, as sm90/slices.cuh."""
    words = config.d_head // 2 + 4
    return 4 * words * WARPGROUP_THREADS * config.n_warpgroups
