"""The three kernels of a backward pass on wgmma; the whole says how each is configured."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from flashsmith.base.dtypes import DType
from flashsmith.base.fields import flag, knob
from flashsmith.kernels.arguments import Arguments
from flashsmith.kernels.backward_part import BackwardPart
from flashsmith.kernels.rules import Refusal, Rule
from flashsmith.kernels.sm90_backward.arguments import Sm90BackwardArguments

WIDTHS = (64, 128, 256)
WARPGROUP_THREADS = 128
PIECE = 64  # rows and columns of a piece of dQ: what a warpgroup multiplies at a time
ROW_STAGES = 2  # of Q with its statistics, and of dO
TILE_SLOTS = 4
GRADIENT_WARPS = 8  # that have dK and dV of a kv block in registers
ROUNDED_BYTES = 8 * 4  # a word for each warp that multiplies
ONES_BYTES = 2048  # 128 are read; compute-sanitizer takes the descriptor's strides for real
MAX_SMEM_BYTES = 232_448  # a block of sm_90: 227 KB
# What ptxas calls a potential performance loss: wgmma instructions are serialized due to …
SERIALISED = re.compile(r"\(C751[0-9]\)")
_DTYPE = "element type of all tensors"
_FOLD = (
    "LSE and delta enter S and dP as one more step of the products, not by a load for each element"
)
_UNORDERED = "sums into dQ are taken in any order: other bits in every run"
MASKS_FIRST = (
    "keys are hidden in a kv block's first step alone, and a warpgroup that sees none there leaves "
    "it out, where the mask allows"
)
ADDERS = "threads that add dQ in order: one for each warpgroup, or three in turn"
EARLY_POLLS = "a thread that adds looks for its turn before the piece of dQ is there"
TWO_PASSES = (
    "dQ by a launch of its own that multiplies S and dP again: nothing is added to memory, and no "
    "order is waited for"
)
V_HALVES = "in the launch for dQ, halves of a block of V are loaded and released one by one"
EARLY_RELEASE = (
    "with two_passes, dO is released when dV is complete and Q when dK is, and loaded in that order"
)
SHORT_LAST = "under a causal mask, short kv blocks of all heads are drawn last"
RISING = "under a causal mask, the last quarter of the heads adds from the longest kv block on"
ROUNDS_DQ = (
    "dQ is rounded by the warps that multiply, when its sums are complete: at a kv block's end, "
    "where they wait for the next one's keys, instead of by a launch"
)
EARLY_START = (
    "launches begin while the one before them ends: they set up meanwhile, and one that needs "
    "nothing of it takes the SMs that it leaves"
)
STAGGERED = (
    "without a mask, a kv block begins at the q tile beside its own keys and comes to the tiles "
    "before it at the end: kv blocks that run together add to different parts of dQ"
)
IN_PARTS = (
    "a kv block is walked with a part of the heads of its group at a time: dK and dV of parts are "
    "added in memory, in order"
)
PART_MB = (
    "MB of Q, dO and dQ of the heads of a group that a kv block is walked with at a time, or fewer "
    "so that there are walks enough; without it with all of them"
)
HEADS_INNER = "blocks go from head to head, then down the rows, where heads lie side by side"


class Sm90BackwardPart(BackwardPart):
    """One kernel of a backward pass on wgmma."""

    __slots__ = ()
    SET: ClassVar[str] = "hopper-bwd"
    ARGUMENTS: ClassVar[type[Arguments]] = Sm90BackwardArguments
    REFUSED_FACTS: ClassVar[tuple[str, ...]] = tuple(
        name for name in BackwardPart.REFUSED_FACTS if name not in ("softcap", "sequences", "alibi")
    )

    @classmethod
    def runs_on(cls, arch_name: str) -> bool:
        """wgmma and setmaxnreg exist on sm_90a alone."""
        return arch_name == "sm_90a"


class MultiplyingPart(Sm90BackwardPart):
    """One that multiplies on wgmma: what ptxas makes of it is looked at."""

    __slots__ = ()
    FIXES_REGISTERS: ClassVar[bool] = True
    PRELUDE: ClassVar[tuple[str, ...]] = (
        *BackwardPart.PRELUDE,
        "flashsmith/tile/panel.cuh",
        "flashsmith/tile/ring.cuh",
    )
    d_head: int

    def refused_build(self, spill_bytes: int, remarks: Sequence[str]) -> Refusal | None:
        """Spills, or products that ptxas runs one after the other, cost a third of the speed."""
        no_other = "use a configuration of `bwd`" if has_roles(self.d_head) else ""
        serialised = next((remark for remark in remarks if SERIALISED.search(remark)), None)
        if serialised is not None:
            said = f"ptxas says {serialised!r}"
            return Refusal("wgmma_serialised", said, no_other or "drop late_fences")
        if spill_bytes:
            return Refusal("spills", f"ptxas spills {spill_bytes} bytes", no_other or "add fold")
        return None


def has_roles(d_head: int) -> bool:
    """Whether the warpgroups share 64 keys: dK and dV of 128 would need more registers than are."""
    return d_head > 128


def q_tile_rows(d_head: int) -> int:
    """Query rows of one step: S and dP of 64 keys take 32 registers each, 64 at d 64."""
    return 64 if has_roles(d_head) else 8192 // d_head


def kv_block_keys(d_head: int) -> int:
    """Keys of one kv block: two warpgroups own 64 each, or one of them dK and the other dV."""
    return 64 if has_roles(d_head) else 128


def pieces_of_tile(d_head: int) -> int:
    """Pieces of dQ of one q tile."""
    return q_tile_rows(d_head) * d_head // PIECE**2


@dataclass(frozen=True, slots=True, order=True)
class Sm90RowsConfig(Sm90BackwardPart):
    """What the tiles kernel needs to know of every query row; counters and sums are cleared."""

    NAME: ClassVar[str] = "sm90_backward_rows"
    PREFIX: ClassVar[str] = "hopper_bwd_rows"
    HEADER: ClassVar[str] = "flashsmith/sm90/backward/launches/rows.cuh"
    CPP_TYPE: ClassVar[str] = "flashsmith::Sm90RowsConfig"
    CPP_METHODS: ClassVar[str] = "flashsmith/sm90/backward/launches/rows_methods.cuh"
    CPP_ENTRY: ClassVar[str] = "flashsmith::sm90::backward_rows"

    dtype: DType = knob((DType.FP16, DType.BF16), "element type of O and dO")
    d_head: int = knob(WIDTHS, "head dimension the kernel is built for")
    fold: bool = flag("fold", _FOLD)
    unordered: bool = flag("unordered", _UNORDERED)
    heads_inner: bool = flag("heads_inner", HEADS_INNER)
    early_start: bool = flag("early_start", EARLY_START)

    @property
    def tile_q(self) -> int:
        """Rows of one block: a row lies in the lanes that read 16 bytes of it each."""
        return self.threads * 8 // self.d_head

    @property
    def tile_k(self) -> int:
        """It looks at no key."""
        return 1

    @property
    def threads(self) -> int:
        """Threads of one block."""
        return 256

    def smem_bytes(self, elem_size: int = 2) -> int:
        """None: a row is summed up between lanes."""
        del elem_size
        return 0


@dataclass(frozen=True, slots=True, order=True)
class Sm90TilesConfig(MultiplyingPart):
    """dK and dV of kv blocks, and what each adds to dQ."""

    NAME: ClassVar[str] = "sm90_backward_tiles"
    PREFIX: ClassVar[str] = "hopper_bwd_tiles"
    HEADER: ClassVar[str] = "flashsmith/sm90/backward/entry.cuh"
    CPP_TYPE: ClassVar[str] = "flashsmith::Sm90TilesConfig"
    CPP_METHODS: ClassVar[str] = "flashsmith/sm90/backward/methods.cuh"
    CPP_ENTRY: ClassVar[str] = "flashsmith::sm90::backward"
    BUILD_RULES: ClassVar[tuple[Rule, ...]]

    dtype: DType = knob((DType.FP16, DType.BF16), _DTYPE)
    d_head: int = knob(WIDTHS, "head dimension the kernel is built for")
    ds_stages: int = knob((2, 3), "tiles of dS that shared memory holds", "ds_{}")
    turns: bool = flag("turns", "warpgroups take turns in issuing products")
    fold: bool = flag("fold", _FOLD)
    early_dv: bool = flag("early_dv", "dV is multiplied while dS is computed, not after it")
    late_fences: bool = flag(
        "late_fences", "dS and dQ are published behind the next products, where the fence is free"
    )
    dq_red: bool = flag("dq_red", "dQ is added from registers, not through shared memory in bulk")
    unordered: bool = flag("unordered", _UNORDERED)
    masks_first: bool = flag("masks_first", MASKS_FIRST)
    adders: int = knob((2, 3), ADDERS, "adders_{}", absent=2)
    early_polls: bool = flag("early_polls", EARLY_POLLS)
    two_passes: bool = flag("two_passes", TWO_PASSES)
    early_release: bool = flag("early_release", EARLY_RELEASE)
    short_last: bool = flag("short_last", SHORT_LAST)
    rising: bool = flag("rising", RISING)
    rounds_dq: bool = flag("rounds_dq", ROUNDS_DQ)
    early_start: bool = flag("early_start", EARLY_START)
    staggered: bool = flag("staggered", STAGGERED)
    in_parts: bool = flag("in_parts", IN_PARTS)

    @property
    def tile_q(self) -> int:
        """Query rows of one step."""
        return q_tile_rows(self.d_head)

    @property
    def tile_k(self) -> int:
        """Keys of one block."""
        return kv_block_keys(self.d_head)

    @property
    def threads(self) -> int:
        """A producer warpgroup and two that multiply."""
        return 3 * WARPGROUP_THREADS

    @property
    def statistics_bytes(self) -> int:
        """Of a q tile: a row's LSE and delta as 16 bytes each, or as a float32 each."""
        return 2 * self.tile_q * (16 if self.fold else 4)

    @property
    def barriers(self) -> int:
        """Full and empty of K, V, Q, dO, dS, the tile ring, and staged dQ or P."""
        staged = 4 if self.adders > 2 else 1  # barriers of a warpgroup's staged pieces
        handed = 2 if has_roles(self.d_head) else 2 * staged + 2
        return 2 * (2 + 2 * ROW_STAGES + self.ds_stages + TILE_SLOTS) + handed

    @property
    def counters(self) -> int:
        """Of the sums of a q tile: one a piece, or one for each warp of a piece that adds alone."""
        if self.two_passes:
            return 0
        return pieces_of_tile(self.d_head) * (4 if has_roles(self.d_head) else 1)

    def smem_bytes(self, elem_size: int = 2) -> int:
        """K, V, rings, staged dQ or P, statistics, ones, barriers, tile slots, dQ rounded."""
        keys = 2 * self.tile_k * self.d_head * elem_size
        rows = 2 * ROW_STAGES * self.tile_q * self.d_head * elem_size
        ds = 0 if self.two_passes else self.ds_stages * self.tile_k * self.tile_q * elem_size
        staged = 0 if self.dq_red or self.two_passes else 2 * PIECE * PIECE * 4
        handed = self.tile_k * self.tile_q * 4 if has_roles(self.d_head) else 0
        ones = ONES_BYTES if self.fold else 0
        words = self.barriers * 8 + TILE_SLOTS * 16 + ROUNDED_BYTES * self.rounds_dq
        statistics = ROW_STAGES * self.statistics_bytes
        return keys + rows + ds + staged + handed + statistics + ones + words


@dataclass(frozen=True, slots=True, order=True)
class Sm90ConvertConfig(Sm90BackwardPart):
    """The sums of dQ in float32, scaled and rounded into rows."""

    NAME: ClassVar[str] = "sm90_backward_dq"
    PREFIX: ClassVar[str] = "hopper_bwd_dq"
    HEADER: ClassVar[str] = "flashsmith/sm90/backward/launches/convert.cuh"
    CPP_TYPE: ClassVar[str] = "flashsmith::Sm90ConvertConfig"
    CPP_METHODS: ClassVar[str] = "flashsmith/sm90/backward/launches/convert_methods.cuh"
    CPP_ENTRY: ClassVar[str] = "flashsmith::sm90::backward_convert"

    dtype: DType = knob((DType.FP16, DType.BF16), "element type of dQ")
    d_head: int = knob(WIDTHS, "head dimension the kernel is built for")
    heads_inner: bool = flag("heads_inner", HEADS_INNER)
    early_start: bool = flag("early_start", EARLY_START)

    @property
    def tile_q(self) -> int:
        """Rows of a q tile of the tiles kernel."""
        return q_tile_rows(self.d_head)

    @property
    def tile_k(self) -> int:
        """Keys of the tiles kernel's blocks."""
        return kv_block_keys(self.d_head)

    @property
    def threads(self) -> int:
        """A piece is what a warpgroup multiplied."""
        return WARPGROUP_THREADS

    def smem_bytes(self, elem_size: int = 2) -> int:
        """None."""
        del elem_size
        return 0


@dataclass(frozen=True, slots=True, order=True)
class Sm90QueriesConfig(MultiplyingPart):
    """dQ of 128 query rows at a time, from S and dP that are multiplied again."""

    NAME: ClassVar[str] = "sm90_backward_queries"
    PREFIX: ClassVar[str] = "hopper_bwd_queries"
    HEADER: ClassVar[str] = "flashsmith/sm90/backward/launches/queries.cuh"
    CPP_TYPE: ClassVar[str] = "flashsmith::Sm90QueriesConfig"
    CPP_METHODS: ClassVar[str] = "flashsmith/sm90/backward/launches/queries_methods.cuh"
    CPP_ENTRY: ClassVar[str] = "flashsmith::sm90::backward_queries"

    dtype: DType = knob((DType.FP16, DType.BF16), _DTYPE)
    d_head: int = knob((256,), "head dimension the kernel is built for")
    turns: bool = flag("turns", "warpgroups take turns in issuing products")
    v_halves: bool = flag("v_halves", V_HALVES)
    early_start: bool = flag("early_start", EARLY_START)

    @property
    def tile_q(self) -> int:
        """Query rows of a block: 64 of each warpgroup that multiplies."""
        return 2 * PIECE

    @property
    def tile_k(self) -> int:
        """Keys of one step."""
        return kv_block_keys(self.d_head)

    @property
    def threads(self) -> int:
        """A producer warpgroup and two that multiply."""
        return 3 * WARPGROUP_THREADS

    def smem_bytes(self, elem_size: int = 2) -> int:
        """Q and dO, two stages of K and one of V, barriers."""
        barriers = 10 if self.v_halves else 8
        return (2 * self.tile_q + 3 * self.tile_k) * self.d_head * elem_size + barriers * 8


TILE_RULES = (
    Rule(
        "fits_shared_memory",
        lambda c: c.smem_bytes() > MAX_SMEM_BYTES,
        f"the rings take more than the {MAX_SMEM_BYTES:,} bytes of shared memory of a block",
        "lower ds, or add dq_red (up to d_head 128 with unordered)",
    ),
    Rule(
        "red_is_unordered",
        lambda c: c.dq_red and not c.unordered and not has_roles(c.d_head),
        "sums from registers do not wait for each other's turn here: only staged ones do",
        "add unordered or drop dq_red",
    ),
    Rule(
        "many_rows_fold",
        lambda c: c.d_head == 64 and not c.fold,
        "S and dP of 128 rows leave no registers to load statistics into",
        "add fold",
    ),
    Rule(
        "adders_add_staged_sums",
        lambda c: (c.adders > 2 or c.early_polls) and (c.dq_red or c.unordered or c.two_passes),
        "no thread adds pieces in order: sums leave from registers, or in any order",
        "drop adders_3 and early_polls",
    ),
    Rule(
        "rounded_sums_are_counted",
        lambda c: c.rounds_dq and (c.dq_red or c.unordered or c.two_passes or has_roles(c.d_head)),
        "only of staged sums in order is it known when they are complete",
        "drop rounds_dq, or dq_red and unordered up to d_head 128",
    ),
    Rule(
        "staggered_sums_have_no_order",
        lambda c: c.staggered and (not c.unordered or has_roles(c.d_head)),
        "in order, a kv block would wait for one that may never run: the first for the last, which "
        "waits for it; wide heads walk from the first q tile",
        "add unordered (up to d_head 128), or drop staggered",
    ),
    Rule(
        "two_passes_add_nothing",
        lambda c: c.two_passes and (c.dq_red or c.unordered or c.rising),
        "nothing is added to dQ, so nothing leaves in a way, or an order, of its own",
        "drop dq_red, unordered and rising",
    ),
    Rule(
        "released_in_two_passes",
        lambda c: not c.two_passes and (c.early_release or getattr(c, "v_halves", False)),
        "where dQ is multiplied too, Q and dO are read to the end of a step, and V is not walked",
        "add two_passes, or drop early_release and v_halves",
    ),
    Rule(
        "two_passes_of_wide_heads",
        lambda c: c.two_passes and (not has_roles(c.d_head) or c.ds_stages != 2),
        "only wide heads, whose sums of 64 keys take longer than two more products, have a launch "
        "for dQ; dS is not in shared memory then",
        "drop two_passes, or give d_head 256 and ds_2",
    ),
    Rule(
        "order_has_one_end",
        lambda c: (
            (c.short_last and not (c.unordered or c.two_passes)) or (c.rising and c.unordered)
        ),
        "blocks of a head are drawn in the order in which they add: short_last is for sums in any "
        "order, rising for sums in order",
        "add or drop unordered",
    ),
    Rule(
        "roles_have_one_order",
        lambda c: (
            has_roles(c.d_head)
            and ((c.turns and not c.two_passes) or c.fold or c.early_dv or c.late_fences)
        ),
        "at this width one warpgroup makes P and dV, the other dS and dK, in one order of products "
        "and fences; statistics are loaded. With two_passes, turns are those of the launch for dQ",
        "drop turns (or add two_passes), fold, early_dv and late_fences",
    ),
)
Sm90TilesConfig.BUILD_RULES = TILE_RULES
