"""The kernels of a backward pass on mma.sync that adds dQ up in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from flashsmith.base.dtypes import DType
from flashsmith.base.fields import flag, knob
from flashsmith.kernels.rules import Rule
from flashsmith.kernels.sm80_backward.parts import (
    LANES,
    MAX_GRADIENT_REGISTERS,
    MMA_ROWS,
    STATISTICS_BYTES,
    WIDTHS,
    Sm80BackwardPart,
)

BLOCK_KEYS = (64, 128)
BLOCK_ROWS = (64, 128)  # a row of dS, 16 bits an element, spans all banks
BLOCK_WARPS = (4, 8)
MOST_TILE_REGISTERS = 208  # a thread; beyond it a q tile is taken in steps
DQ_ROWS = 32  # rows of dQ that a warp multiplies
ROUNDED_ROWS = 64  # rows of a cta that rounds dQ
ROLES = "half of the warps make P and dV, half dS and dK: P goes over in shared memory"
TURN = "q tiles for which a kv block takes its turn to add to dQ at once"
ROUNDS = "the last kv block that adds to a q tile rounds its dQ: no launch for that"
UNORDERED = "sums into dQ in any order: other bits in every run"
BUFFERED = "copies the next tile while this one is multiplied: two stages of shared memory"


@dataclass(frozen=True, slots=True, order=True)
class Sm80BlocksConfig(Sm80BackwardPart):
    """dK and dV of a kv block, and what it adds to dQ."""

    NAME: ClassVar[str] = "sm80_backward_blocks"
    PREFIX: ClassVar[str] = "bwd_blocks"
    HEADER: ClassVar[str] = "flashsmith/sm80/backward_sums/kernel.cuh"
    CPP_TYPE: ClassVar[str] = "flashsmith::Sm80BlocksConfig"
    CPP_METHODS: ClassVar[str] = "flashsmith/sm80/backward_sums/methods.cuh"
    CPP_ENTRY: ClassVar[str] = "flashsmith::sm80::backward_blocks"
    BUILD_RULES: ClassVar[tuple[Rule, ...]]

    dtype: DType = knob((DType.FP16, DType.BF16), "element type of all tensors")
    d_head: int = knob(WIDTHS, "head dimension the kernel is built for")
    B_c: int = knob(BLOCK_KEYS, "keys that a cta owns")
    B_r: int = knob(BLOCK_ROWS, "query rows that it takes at a time")
    n_warps: int = knob(BLOCK_WARPS, "warps of a cta")
    roles: bool = flag("roles", ROLES)
    buffered: bool = flag("buffer", BUFFERED)
    unordered: bool = flag("unordered", UNORDERED)
    turn: int = knob((1, 2), TURN, "turn_{}", absent=1)
    rounds: bool = flag("rounds", ROUNDS)

    @property
    def tile_q(self) -> int:
        """Query rows of one step."""
        return self.B_r

    @property
    def tile_k(self) -> int:
        """Keys of one cta."""
        return self.B_c

    @property
    def threads(self) -> int:
        """Threads of one block."""
        return self.n_warps * LANES

    @property
    def stages(self) -> int:
        """Tiles of Q and dO, and of dS, that shared memory holds."""
        return 2 if self.buffered else 1

    @property
    def keys_per_warp(self) -> int:
        """Keys whose gradients a warp owns; with roles it owns one of the two."""
        return self.B_c // self.owners

    @property
    def gradient_registers(self) -> int:
        """32-bit registers a thread that gradients take."""
        return (1 if self.roles else 2) * self.keys_per_warp * self.d_head // LANES

    @property
    def dq_warps(self) -> int:
        """Warps that multiply dQ: with roles and turns, those that make P."""
        return self.n_warps // 2 if self.roles and not self.unordered else self.n_warps

    @property
    def owners(self) -> int:
        """Warps, with roles pairs of warps, that have keys, and turns, of their own."""
        return self.n_warps // 2 if self.roles else self.n_warps

    @property
    def dq_columns(self) -> int:
        """Columns of dQ that a warp multiplies."""
        return self.d_head * (self.B_r // DQ_ROWS) // self.dq_warps

    @property
    def tile_registers(self) -> int:
        """32-bit registers a thread for gradients, and for scores of all rows of a q tile."""
        scores = (1 if self.roles else 2) * self.keys_per_warp * self.B_r // LANES
        return self.gradient_registers + scores + self.keys_per_warp // 4 + 4

    def smem_bytes(self, elem_size: int = 2) -> int:
        """K and V stay; Q, dO, statistics and dS have stages; with roles, P in float32."""
        rows = self.B_r * (2 * self.d_head * elem_size + STATISTICS_BYTES)
        scores = self.B_r * self.B_c
        stages = self.stages * (rows + scores * elem_size)
        return 2 * self.B_c * self.d_head * elem_size + stages + (4 * scores if self.roles else 0)


@dataclass(frozen=True, slots=True, order=True)
class Sm80RoundingConfig(Sm80BackwardPart):
    """dQ from float32 to rows of 16 bits."""

    NAME: ClassVar[str] = "sm80_backward_rounding"
    PREFIX: ClassVar[str] = "bwd_rounding"
    HEADER: ClassVar[str] = "flashsmith/sm80/backward_sums/rounding.cuh"
    CPP_TYPE: ClassVar[str] = "flashsmith::Sm80RoundingConfig"
    CPP_METHODS: ClassVar[str] = "flashsmith/sm80/backward_sums/rounding_methods.cuh"
    CPP_ENTRY: ClassVar[str] = "flashsmith::sm80::backward_rounding"

    dtype: DType = knob((DType.FP16, DType.BF16), "element type of dQ")
    d_head: int = knob(WIDTHS, "head dimension the kernel is built for")
    B_c: int = knob(BLOCK_KEYS, "keys of a kv block that added")
    B_r: int = knob(BLOCK_ROWS, "query rows to which it added at a time")

    @property
    def tile_q(self) -> int:
        """Query rows of one cta."""
        return ROUNDED_ROWS

    @property
    def tile_k(self) -> int:
        """Keys whose sums it looks for."""
        return self.B_c

    @property
    def threads(self) -> int:
        """Threads of one block: a warp rounds 16 rows."""
        return ROUNDED_ROWS // MMA_ROWS * LANES

    def smem_bytes(self, elem_size: int = 2) -> int:
        """Rows are staged."""
        return ROUNDED_ROWS * self.d_head * elem_size


BLOCK_RULES = (
    Rule(
        "warp_has_16_keys",
        lambda c: c.keys_per_warp % MMA_ROWS != 0,
        "mma.sync works on 16 rows and the owned keys leave fewer to a warp",
        "use fewer warps, roles, or a larger owned tile",
    ),
    Rule(
        "gradients_fit_registers",
        lambda c: c.gradient_registers > MAX_GRADIENT_REGISTERS,
        f"a warp's gradients take more than {MAX_GRADIENT_REGISTERS} registers a thread",
        "use more warps, roles, or a smaller owned tile",
    ),
    Rule(
        "warp_has_32_columns_of_dq",
        lambda c: c.dq_columns % 32 != 0 or c.dq_columns > c.d_head,
        "a warp multiplies 32 rows of dQ, of which its columns are no part in multiples of 32",
        "use another number of warps, or fewer rows at a time",
    ),
    Rule(
        "roles_take_a_tile_at_once",
        lambda c: c.roles and c.tile_registers > MOST_TILE_REGISTERS,
        f"two warps that share keys meet once a q tile, whose scores and gradients take more than "
        f"{MOST_TILE_REGISTERS} registers a thread",
        "use more warps, or fewer rows or keys at a time",
    ),
    Rule(
        "any_order_has_no_last_block",
        lambda c: c.unordered and (c.rounds or c.turn > 1),
        "without an order there are no turns, and nobody knows when a sum is complete",
        "leave out rounds and turn_2, or unordered",
    ),
)
Sm80BlocksConfig.BUILD_RULES = BLOCK_RULES
