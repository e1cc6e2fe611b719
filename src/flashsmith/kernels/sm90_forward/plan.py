"""The launch of a Hopper forward kernel: tensor maps, tile order, and the arguments' bytes."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass, field

from flashsmith.base.errors import Unsupported
from flashsmith.kernels.kernel import KernelConfig
from flashsmith.kernels.launch import (
    ForwardCall,
    LaunchGeometry,
    MapEncoder,
    TensorArg,
    TensorMapSpec,
)
from flashsmith.kernels.sm90_forward.config import (
    PANEL_COLUMNS,
    WARPGROUP_ROWS,
    WARPGROUP_THREADS,
    Ascending,
    HopperForwardKernelConfig,
    Scheduler,
)
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.needs import ForwardTraits

LOG2_E = 1.4426950408889634
ARGS_BYTES = 640  # sizeof(HopperForwardArgs)
COUNTER_BYTES = 16384  # tiles drawn, blocks that are done, and a flag for each part of a tile
FIRST_FLAG = 2  # words before the flags
MOST_PARTS = 4  # of a tile: who ends it adds them up one after the other
LEAST_BLOCKS = 4  # of keys that a part is worth having for
LEAST_SAVED_KEYS = 900  # a block's; exchanging parts takes the time of some 800 (H200, 2026-11)
MAX_STRIDE_BYTES = 1 << 40  # of a tensor map: cuTensorMapEncodeTiled
KEPT_CALLS = 64  # argument blocks a plan remembers: encoding four maps is host work in every call
_AFTER_MAPS = struct.Struct("<Q3q2Q6if9i")


@dataclass(frozen=True, slots=True)
class TileOrder:
    """In which order a causal launch draws its tiles; see decode_tile in sm90/tiles.cuh."""

    section_heads: int  # heads whose K and V stay in L2 together
    short_tiles: int  # of each head, kept for the end to even out when blocks finish
    early_heads: int = 0  # the first ones, whose short tiles come with their sections all the same


@dataclass(frozen=True, slots=True)
class SplitTiles:
    """Which tiles of a launch are cut along the keys; see SplitRange in sm90/tiles.cuh."""

    whole_tiles: int  # that come first
    ranges: int = 0  # of equal length, that the others are cut into
    blocks: int = 0  # of keys, of all tiles that are cut

    @property
    def drawn(self) -> int:
        """What blocks draw: whole tiles, then ranges."""
        return self.whole_tiles + self.ranges


@dataclass(frozen=True, slots=True)
class HopperPlan:
    """A problem laid out for one Hopper kernel."""

    config: HopperForwardKernelConfig
    problem: AttentionProblem
    traits: ForwardTraits
    geometry: LaunchGeometry
    order: TileOrder
    split: SplitTiles
    _packed: dict[ForwardCall, bytes] = field(default_factory=dict, compare=False, repr=False)

    @property
    def workspace_bytes(self) -> int:
        """The counter of what is drawn, left zero as it was found, and parts of tiles."""
        if self.config.scheduler is not Scheduler.DYNAMIC and not self.split.ranges:
            return 0
        return COUNTER_BYTES + self.split.ranges * self.config.cluster * part_bytes(self.config)

    @property
    def ends_together(self) -> bool:
        """Whether the tiles of a last wave are split."""
        return self.split.ranges > 0

    @property
    def sum_order(self) -> str:
        """Split tiles are added up part by part, and only the first tiles of blocks may ascend."""
        if self.split.ranges:
            return f"{self.split.ranges} parts"
        some_ascend = self.traits.causal and self.config.ascending is Ascending.FIRST
        blocks = self.geometry.grid[0] // self.config.cluster
        return f"the first {blocks} ascend" if some_ascend and blocks < self.split.drawn else ""

    @property
    def q_tiles(self) -> int:
        """Tiles of one head, counted in whole clusters."""
        return _q_tiles(self.config, self.problem)

    def params(self, device: MapEncoder, call: ForwardCall) -> tuple[bytes, ...]:
        """The kernel's one parameter."""
        packed = self._packed.get(call)
        if packed is None:
            packed = self._pack(device, call)
            if len(self._packed) >= KEPT_CALLS:
                self._packed.clear()
            self._packed[call] = packed
        return (packed,)

    def _pack(self, device: MapEncoder, call: ForwardCall) -> bytes:
        problem, config = self.problem, self.config
        kv_rows = config.B_c // config.cluster
        maps = (
            self._map(device, "q", call.q, problem.q_len, problem.heads, WARPGROUP_ROWS),
            self._map(device, "k", call.k, problem.k_len, problem.kv_heads, kv_rows),
            self._map(device, "v", call.v, problem.k_len, problem.kv_heads, kv_rows),
            self._map(device, "o", call.o, problem.q_len, problem.heads, WARPGROUP_ROWS),
        )
        batch_heads = problem.batch * problem.heads
        rest = _AFTER_MAPS.pack(
            call.o.address,
            call.o.batch_stride,
            call.o.seq_stride,
            call.o.head_stride,
            call.lse,
            call.workspace,
            problem.heads,
            problem.heads // problem.kv_heads,
            problem.q_len,
            problem.k_len,
            problem.d_head,
            _bounded_diagonal(problem),
            problem.softmax_scale * LOG2_E,
            batch_heads,
            self.q_tiles,
            self.q_tiles * batch_heads,
            self.order.section_heads,
            self.order.short_tiles,
            self.order.early_heads,
            self.split.whole_tiles,
            self.split.ranges,
            self.split.blocks,
        )
        return b"".join((*maps, rest)).ljust(ARGS_BYTES, b"\0")

    def _map(
        self, device: MapEncoder, name: str, arg: TensorArg, rows: int, heads: int, box_rows: int
    ) -> bytes:
        problem, bytes_each = self.problem, self.problem.dtype.bytes
        dims = (problem.d_head, rows, heads, problem.batch)
        given = (arg.seq_stride, arg.head_stride, arg.batch_stride)
        strides = tuple(
            # A dimension of one element may have any stride; the map asks for a plausible one.
            stride * bytes_each if extent > 1 else problem.d_head * bytes_each
            for stride, extent in zip(given, dims[1:], strict=True)
        )
        if any(not 0 < stride < MAX_STRIDE_BYTES or stride % 16 for stride in strides):
            raise Unsupported(
                f"{self.config.short_form()}: {name} has strides of {strides} bytes; a tensor map "
                f"takes multiples of 16 from 16 to 2^40; copy it or use a kernel without TMA."
            )
        return device.tensor_map(
            TensorMapSpec(
                address=arg.address,
                element_bytes=bytes_each,
                dims=dims,
                strides_bytes=strides,
                box=(PANEL_COLUMNS, box_rows, 1, 1),
                is_bf16=problem.dtype.name == "BF16",
            )
        )


def plan_hopper(
    config: KernelConfig,
    problem: AttentionProblem,
    lse: bool,
    sm_count: int,
    order: TileOrder | None = None,
) -> HopperPlan:
    """The launch of `config` on `problem`; `order` replaces the tile order that is the rule."""
    assert isinstance(config, HopperForwardKernelConfig)
    rows = config.tile_q * config.cluster
    traits = ForwardTraits(
        causal=problem.causal and _bounded_diagonal(problem) < problem.k_len - 1,
        ragged_q=problem.q_len % rows != 0,
        ragged_k=problem.k_len % config.B_c != 0,
        narrow_d=problem.d_head < config.d_head,
        lse=lse,
    )
    clusters = max(sm_count // config.cluster, 1)
    split = split_tiles(config, problem, traits, clusters)
    drawn_at_once = split.drawn
    if config.scheduler is not Scheduler.SINGLE:
        drawn_at_once = min(drawn_at_once, clusters)
    geometry = LaunchGeometry(
        grid=(drawn_at_once * config.cluster, 1, 1),
        threads=config.threads,
        smem_bytes=config.smem_bytes(),
        cluster=config.cluster,
    )
    return HopperPlan(
        config, problem, traits, geometry, order or tile_order(config, problem, sm_count), split
    )


def _q_tiles(config: HopperForwardKernelConfig, problem: AttentionProblem) -> int:
    return -(-problem.q_len // (config.tile_q * config.cluster))


def split_tiles(
    config: HopperForwardKernelConfig,
    problem: AttentionProblem,
    traits: ForwardTraits,
    clusters: int,
) -> SplitTiles:
    """The tiles that would not fill a last wave, cut so that all blocks end together.

    Under a mask the short tiles even that out already; kernels for narrower heads cannot.
    """
    tiles = _q_tiles(config, problem) * problem.batch * problem.heads
    whole = SplitTiles(tiles)
    if not config.split_last or traits.causal or traits.narrow_d:
        return whole
    tile_blocks, rest = -(-problem.k_len // config.B_c), tiles % clusters
    ranges = min(clusters, rest * MOST_PARTS, rest * tile_blocks // LEAST_BLOCKS)
    if (ranges - rest) * problem.k_len < LEAST_SAVED_KEYS * ranges:
        return whole
    flags = FIRST_FLAG + ranges * config.cluster * config.n_warpgroups
    if 4 * flags > COUNTER_BYTES or rest * tile_blocks * ranges >= 1 << 31:
        return whole
    return SplitTiles(tiles - rest, ranges, rest * tile_blocks)


def part_bytes(config: HopperForwardKernelConfig) -> int:
    """A block's part of a tile in float32 with its row sums and maxima, as sm90/parts.cuh."""
    words = config.d_head // 2 + 4
    return 4 * words * WARPGROUP_THREADS * config.n_warpgroups


def tile_order(
    config: HopperForwardKernelConfig, problem: AttentionProblem, sm_count: int
) -> TileOrder:
    """Sections and short tiles as measured best (H200, 2026-11, S 512 to 16k, d 64 to 256)."""
    batch_heads = problem.batch * problem.heads
    kv_bytes = 2 * problem.k_len * problem.d_head * problem.dtype.bytes
    head_bytes = max(kv_bytes * problem.kv_heads // problem.heads, 1)
    q_tiles = _q_tiles(config, problem)
    usual = math.sqrt(sm_count * q_tiles / batch_heads)
    order_of = _drawn_late if config.late_draw and problem.k_len > 512 else _drawn_early
    section_megabytes, short_tiles, late_megabytes = order_of(problem, usual)
    # Drawn early, tiles of two sections are under way at any time: one need not fill the SMs.
    least_tiles = 0.9 * sm_count / config.cluster if config.late_draw else 0
    heads = 1
    while 2 * heads <= batch_heads and (
        2 * heads * head_bytes <= section_megabytes << 20 or heads * q_tiles < least_tiles
    ):
        heads *= 2
    late_heads = min((late_megabytes << 20) // head_bytes, batch_heads) or batch_heads
    return TileOrder(
        section_heads=heads,
        short_tiles=min(short_tiles, q_tiles - 1),
        early_heads=batch_heads - late_heads,
    )


def _is_middle(problem: AttentionProblem) -> bool:
    return 64 < problem.d_head <= 128


def _drawn_late(problem: AttentionProblem, usual: float) -> tuple[int, int, int]:
    """As `_drawn_early`: half as many short tiles even out as much, and K and V are read once.

    At d 128 half of the section saved 0.1 to 0.6 % from 4k on.
    """
    if not _is_middle(problem):
        return 16, round(usual / 2), 0
    if problem.k_len <= 2048:
        return 16, 0 if problem.k_len <= 1024 else round(usual / 2), 0
    return 8, round(usual / 3), 0


def _drawn_early(problem: AttentionProblem, usual: float) -> tuple[int, int, int]:
    """Megabytes of a section, short tiles of a head for the end, and megabytes of such heads.

    0 megabytes of such heads are all heads. `usual` short tiles of every head take all SMs together
    half as long as the longest tile takes one.
    """
    return _section_megabytes(problem), _short_tiles(problem, usual), _late_megabytes(problem)


def _short_tiles(problem: AttentionProblem, usual: float) -> int:
    """At d 128 one more or less cost 0.6 to 3 % up to 2,048 keys."""
    if _is_middle(problem) and problem.k_len <= 2048:
        return max(math.floor(usual) - 1, 0)
    return math.ceil(usual)


def _late_megabytes(problem: AttentionProblem) -> int:
    """Reading K and V of all heads again costs 0.3 to 3 % of a short launch.

    In a long one, short tiles of fewer heads even out less, which cost up to 4 %.
    """
    if problem.k_len > 1024 or _is_middle(problem):
        return 0
    return 64 if problem.d_head > 128 and problem.k_len > 512 else 32


def _section_megabytes(problem: AttentionProblem) -> int:
    """Small where tiles are short and Q and O pass through L2 as well."""
    if problem.d_head <= 64 and problem.k_len <= 512:
        return 8
    if problem.d_head <= 128:  # twice as much cost 2 % at 1k and 8k, 1 % at 4k and 16k
        return 16 if problem.k_len <= 4096 else 32
    return 16 if problem.k_len <= 512 else 32  # half cost 1 % at 2k, twice 0.6 % at 16k


def _bounded_diagonal(problem: AttentionProblem) -> int:
    """The diagonal, no further out than makes a difference: sums with it stay in 32 bits.

    Without a mask it lies right of the last key: a causal kernel then computes the problem too.
    """
    offset = problem.diagonal_offset if problem.causal else problem.k_len
    return max(-problem.q_len, min(offset, problem.k_len))
