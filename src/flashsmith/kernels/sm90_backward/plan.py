"""How gradients are laid out on wgmma: maps, scratch, and kv blocks in an order that ends."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from flashsmith.base.errors import ArgumentError, Unsupported
from flashsmith.kernels.arguments import TensorArg, TensorMapSpec, maps_obstacle
from flashsmith.kernels.edges import edges_of
from flashsmith.kernels.kernel import KernelConfig
from flashsmith.kernels.launch import SCRATCH, Call, Launch, LaunchGeometry, Plan
from flashsmith.kernels.sm90_backward.arguments import LISTED_BYTES, Sm90BackwardArguments
from flashsmith.kernels.sm90_backward.config import Sm90BackwardConfig
from flashsmith.kernels.sm90_backward.draw_order import (
    DrawOrder,
    draw_order,
    hides_first_steps_only,
)
from flashsmith.kernels.sm90_backward.parts import (
    GRADIENT_WARPS,
    PIECE,
    Sm90TilesConfig,
    pieces_of_tile,
)
from flashsmith.kernels.tile_list.plan import TileListLaunch, list_launch
from flashsmith.kernels.tile_list.sizes import (
    OUTER_ITEMS,
    list_bytes,
    most_tiles,
    turned,
)
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.needs import Needs, needs_of
from flashsmith.problem.signature import BACKWARD

MAX_GRID = 2**31 - 1  # ctas along x
ALIGNMENT = 256
MAPPED = {"q": "q_map", "k": "k_map", "v": "v_map", "do": "d_o_map"}


@dataclass(frozen=True, slots=True)
class Scratch:
    """Where the launches of a plan hand what to each other."""

    statistics: int  # bytes
    dq_sums: int
    n_counters: int
    lists: tuple[int, int] = (0, 0)  # bytes of those of q tiles and kv blocks
    part_sums: int = 0  # bytes of dK and dV of parts of groups,
    n_part_counters: int = 0  # and words that count them

    @property
    def bytes(self) -> int:
        """All of it."""
        return self.list_places[1] + self.lists[1]

    @property
    def list_places(self) -> tuple[int, int]:
        """Where the lists begin, behind everything else."""
        first = self.statistics + self.dq_sums + self.part_sums + 4 * self.n_counters
        if not any(self.lists):
            return first, first
        first = _rounded(first, ALIGNMENT)
        return first, first + _rounded(self.lists[0], ALIGNMENT)


@dataclass(frozen=True, slots=True)
class Sm90BackwardLaunch(Launch):
    """One of the three launches: all are told the same."""

    tiles_config: Sm90TilesConfig | None = None
    scratch: Scratch = Scratch(0, 0, 0)
    order: DrawOrder = field(default_factory=DrawOrder)

    def arguments(self, call: Call) -> Sm90BackwardArguments:
        """The kernels' one parameter."""
        problem, config = self.problem, self.tiles_config
        assert config is not None
        statistics = call[SCRATCH].address
        dq_sums = statistics + self.scratch.statistics
        part_sums = dq_sums + self.scratch.dq_sums
        counters = part_sums + self.scratch.part_sums
        parts = problem.group // self.order.walked_heads
        kv_blocks = _kv_blocks(config, problem)
        q_list, k_list = (statistics + place for place in self.scratch.list_places)
        edges = edges_of(problem)
        return Sm90BackwardArguments(
            **self._maps(call),
            o=call["o"],
            d_o=call["do"],
            dq=call["dq"],
            dk=call["dk"],
            dv=call["dv"],
            lse=call["lse"].address,
            dlse=call["dlse"].address if "dlse" in call else 0,
            statistics=statistics,
            dq_sums=dq_sums,
            counters=counters,
            diagonal=edges.right,
            q_tiles=_q_tiles(config, problem),
            kv_blocks=kv_blocks,
            all_kv_blocks=kv_blocks * problem.kv_heads * problem.batch * parts,
            section_heads=self.order.section_heads,
            n_counters=self.scratch.n_counters,
            left_diagonal=edges.left,
            position=edges.position,
            alibi_slopes=call["alibi_slopes"].address if "alibi_slopes" in call else 0,
            short_blocks=self.order.short_blocks,
            rising_heads=self.order.rising_heads,
            q_list=q_list if problem.sequences else 0,
            k_list=k_list if problem.sequences else 0,
            section_rows=self.order.section_rows,
            softcap=problem.softcap or 0.0,
            part_sums=part_sums,
            part_counters=counters + 4 * (self.scratch.n_counters - self.scratch.n_part_counters),
            parts=parts,
            part_heads=self.order.walked_heads,
        )

    def obstacle(self, call: Call) -> str:
        """Why a tensor map cannot describe these tensors, or an empty text."""
        return maps_obstacle(self._maps(call))

    def _maps(self, call: Call) -> dict[str, TensorMapSpec]:
        config = self.tiles_config
        assert config is not None
        roles = {role.name: role for role in BACKWARD.tensors}
        found = {}
        for name, argument in MAPPED.items():
            batch, rows, heads, d_head = roles[name].rows_first(self.problem)
            box_rows = config.tile_q if name in ("q", "do") else config.tile_k
            dims = (d_head, rows, heads, batch)
            found[argument] = _map(call[name], dims, box_rows, self.problem.dtype.name == "BF16")
        return found


def _map(
    arg: TensorArg, dims: tuple[int, int, int, int], box_rows: int, is_bf16: bool
) -> TensorMapSpec:
    given = (arg.seq_stride, arg.head_stride, arg.batch_stride)
    strides = tuple(
        # A dimension of one element may have any stride; the map asks for a plausible one.
        2 * (stride if extent > 1 else dims[0])
        for stride, extent in zip(given, dims[1:], strict=True)
    )
    return TensorMapSpec(
        address=arg.address,
        element_bytes=2,
        dims=dims,
        strides_bytes=strides,
        box=(PIECE, box_rows, 1, 1),
        is_bf16=is_bf16,
    )


def _q_tiles(config: Sm90TilesConfig, problem: AttentionProblem) -> int:
    """Of a head, in scratch memory: see sm90/scratch_tiles.cuh for packed sequences."""
    if problem.sequences:
        return problem.q_len // config.tile_q + problem.sequences + OUTER_ITEMS + 1
    return math.ceil(problem.q_len / config.tile_q)


def _kv_blocks(config: Sm90TilesConfig, problem: AttentionProblem) -> int:
    if problem.sequences:
        return most_tiles(turned(problem), config.tile_k)
    return math.ceil(problem.k_len / config.tile_k)


def _rounded(n_bytes: int, to: int) -> int:
    return math.ceil(n_bytes / to) * to


def plan_backward(config: Sm90BackwardConfig, problem: AttentionProblem, sm_count: int) -> Plan:
    """The launches of `config` on `problem`, in the order in which they follow from each other."""
    if not min(problem.q_len, problem.k_len):
        raise Unsupported(
            f"{config.short_form()}: q_len is {problem.q_len} and k_len is {problem.k_len}; a "
            f"tensor map takes none that is empty; use a configuration of `bwd`."
        )
    order = draw_order(config, problem, sm_count)
    tiles = _tiles(config, problem, order.walked_heads)
    q_tiles, heads = _q_tiles(tiles, problem), problem.heads * problem.batch
    kv_blocks = _kv_blocks(tiles, problem) * problem.kv_heads * problem.batch
    scratch = _scratch(tiles, q_tiles * heads, kv_blocks)
    if problem.sequences:
        of_keys = list_bytes(turned(problem), tiles.tile_k)
        scratch = replace(scratch, lists=(list_bytes(problem, tiles.tile_q), of_keys))
    rows = config.rows
    pieces = pieces_of_tile(config.d_head) * q_tiles * heads
    grids: dict[KernelConfig, int] = {
        rows: q_tiles * tiles.tile_q // rows.tile_q * heads,
        tiles: min(kv_blocks * problem.group // order.walked_heads, max(sm_count, 1)),
    }
    if not config.rounds_dq:
        grids[config.convert] = pieces
    if config.two_passes:
        grids[config.convert] = math.ceil(problem.q_len / config.convert.tile_q) * heads
    needs = _needs_by_part(config, tiles, problem)
    launches = tuple(
        Sm90BackwardLaunch(
            part,
            problem,
            needs[part],
            _geometry(
                part,
                ctas,
                LISTED_BYTES if part is tiles and problem.sequences else 0,
                is_early=config.early_start and part is not rows,
            ),
            scratch_bytes=scratch.bytes,
            tiles_config=tiles,
            scratch=scratch,
            order=order,
        )
        for part, ctas in grids.items()
    )
    return (*_lists(tiles, problem, scratch), *launches) if problem.sequences else launches


def _tiles(config: Sm90BackwardConfig, problem: AttentionProblem, walked: int) -> Sm90TilesConfig:
    """The kernel of all products, as the problem's mask and groups take it."""
    tiles = config.tiles
    if not hides_first_steps_only(tiles, problem, walked):
        tiles = replace(tiles, masks_first=False)
    needs = needs_of(problem, tile_q=tiles.tile_q, tile_k=tiles.tile_k, d_head=config.d_head)
    if not {"causal", "window_left", "alibi"}.isdisjoint(needs):
        tiles = replace(tiles, staggered=False)
    return replace(tiles, in_parts=walked < problem.group)


def _needs_by_part(
    config: Sm90BackwardConfig, tiles: Sm90TilesConfig, problem: AttentionProblem
) -> dict[KernelConfig, Needs]:
    """What each launch looks at, by the length of its own tiles."""
    dq = config.convert
    tile_q = dq.tile_q if config.two_passes else tiles.tile_q
    needs = needs_of(problem, tile_q=tiles.tile_q, tile_k=tiles.tile_k, d_head=config.d_head)
    of_dq = needs_of(problem, tile_q=tile_q, tile_k=tiles.tile_k, d_head=config.d_head)
    edges = {"causal", "window_left", "ragged_q", "narrow_d"}
    looks_at: dict[KernelConfig, set[str]] = {
        config.rows: {"sequences", "narrow_d"},
        # What TMA and statistics bring from behind the rows is zero: where they end matters only
        # for dQ.
        tiles: set(needs) - (set() if config.rounds_dq else {"ragged_q"}),
        # Sums that are there are of keys that exist; keys that are multiplied may not.
        dq: edges | ({"ragged_k", "softcap", "alibi"} if config.two_passes else {"sequences"}),
    }
    return {
        part: Needs(tuple(name for name in (of_dq if part is dq else needs) if name in kept))
        for part, kept in looks_at.items()
    }


def _lists(
    tiles: Sm90TilesConfig, problem: AttentionProblem, scratch: Scratch
) -> tuple[TileListLaunch, ...]:
    """The launches that list q tiles and kv blocks; the longest sequences' come first.

    Tiles of one sequence stand together in both: masks, which would part them, are left out.
    """
    of_rows, of_keys = scratch.list_places
    q_tile, k_tile = tiles.tile_q, tiles.tile_k
    listed = (
        list_launch(problem, Needs(), tile_q=q_tile, tile_k=k_tile, place=of_rows, numbered=True),
        list_launch(
            turned(problem),
            Needs(),
            tile_q=k_tile,
            tile_k=q_tile,
            place=of_keys,
            of_keys=True,
            numbered=True,
        ),
    )
    return tuple(replace(launch, scratch_bytes=scratch.bytes) for launch in listed)


def _scratch(config: Sm90TilesConfig, q_tiles: int, kv_blocks: int) -> Scratch:
    statistics = q_tiles * config.statistics_bytes
    blocks = kv_blocks if config.in_parts else 0
    return Scratch(
        math.ceil(statistics / ALIGNMENT) * ALIGNMENT,
        0 if config.two_passes else q_tiles * config.tile_q * config.d_head * 4,
        1 + config.counters * q_tiles + GRADIENT_WARPS * blocks,
        part_sums=blocks * 2 * config.tile_k * config.d_head * 4,
        n_part_counters=GRADIENT_WARPS * blocks,
    )


def _geometry(part: KernelConfig, ctas: int, more_bytes: int, *, is_early: bool) -> LaunchGeometry:
    if ctas > MAX_GRID:
        raise ArgumentError(
            f"{part.short_form()}: the problem has {ctas:,} tiles, one launch takes {MAX_GRID:,}; "
            f"split the batch."
        )
    smem_bytes = part.smem_bytes() + more_bytes
    return LaunchGeometry((ctas, 1, 1), part.threads, smem_bytes, is_early=is_early)
