"""The three kernels of a backward pass on mma.sync; the whole says how each is configured."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar

from flashsmith.base.dtypes import DType
from flashsmith.base.fields import flag, knob
from flashsmith.kernels.arguments import Arguments
from flashsmith.kernels.backward_part import BackwardPart
from flashsmith.kernels.rules import Rule
from flashsmith.kernels.sm80_backward.arguments import BackwardArguments

LANES = 32
MMA_ROWS = 16  # of the A operand of mma.sync m16n8k16
CHUNK = 8  # elements of 16 bytes
STATISTICS_BYTES = 8  # of a query row: shift and delta
MAX_GRADIENT_REGISTERS = 128  # a thread's part of its gradients: more leaves no room for scores
WIDTHS = (64, 128, 256)
ROWS = (32, 64, 128)
WARPS = (4, 8)
_BUFFERED = "copies the next tile while this one is multiplied: two stages of shared memory"


class KeyGradients(IntEnum):
    """Which gradients a launch that owns keys computes."""

    BOTH = 0
    DK = 1
    DV = 2


class Sm80BackwardPart(BackwardPart):
    """One kernel of a backward pass on mma.sync."""

    __slots__ = ()
    ARGUMENTS: ClassVar[type[Arguments]] = BackwardArguments
    REFUSED_FACTS: ClassVar[tuple[str, ...]] = tuple(
        name
        for name in BackwardPart.REFUSED_FACTS
        if name not in ("softcap", "sequences", "alibi", "bias")
    )

    @classmethod
    def runs_on(cls, arch_name: str) -> bool:
        """mma.sync, ldmatrix and cp.async exist from sm_80 on."""
        return arch_name.startswith("sm_")


class Sm80TilePart(Sm80BackwardPart):
    """One that owns rows and walks tiles of the other side."""

    __slots__ = ()
    n_warps: int
    buffered: bool

    @property
    def owned(self) -> int:
        """Rows that a cta keeps for the whole kernel."""
        raise NotImplementedError

    @property
    def walked(self) -> int:
        """Rows of the other side that it takes at a time."""
        raise NotImplementedError

    @property
    def gradients_held(self) -> int:
        """Gradients of the owned rows that are summed up at once."""
        return 1

    @property
    def threads(self) -> int:
        """Threads of one block."""
        return self.n_warps * LANES

    @property
    def stages(self) -> int:
        """Tiles of the other side that shared memory holds."""
        return 2 if self.buffered else 1

    @property
    def rows_per_warp(self) -> int:
        """Owned rows of one warp."""
        return self.owned // self.n_warps

    @property
    def gradient_registers(self) -> int:
        """32-bit registers a thread that gradients take."""
        return self.gradients_held * self.rows_per_warp * self.d_head // LANES


@dataclass(frozen=True, slots=True, order=True)
class Sm80DeltaConfig(Sm80BackwardPart):
    """What the other two need to know of every query row, into scratch memory."""

    NAME: ClassVar[str] = "sm80_backward_delta"
    PREFIX: ClassVar[str] = "bwd_delta"
    HEADER: ClassVar[str] = "flashsmith/sm80/backward_delta.cuh"
    CPP_TYPE: ClassVar[str] = "flashsmith::Sm80DeltaConfig"
    CPP_METHODS: ClassVar[str] = "flashsmith/sm80/backward_delta_methods.cuh"
    CPP_ENTRY: ClassVar[str] = "flashsmith::sm80::backward_delta"

    dtype: DType = knob((DType.FP16, DType.BF16), "element type of O and dO")
    d_head: int = knob(WIDTHS, "head dimension the kernel is built for")
    clears: bool = flag("clears", "sets the counters of sums of dQ to 0, too")
    zeros: bool = flag("zeros", "sets the sums of dQ themselves to 0, too")
    unseen_rows: int = knob(
        (0, 64, 128), "rows of q tiles; of those that see no key, dQ is 0", "unseen_{}", absent=0
    )

    @property
    def tile_q(self) -> int:
        """Rows of one cta: a row lies in the lanes that read 16 bytes of it each."""
        return self.threads * CHUNK // self.d_head

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
class Sm80KeyGradientsConfig(Sm80TilePart):
    """dK and dV of a kv block, summed over the query heads of its group."""

    NAME: ClassVar[str] = "sm80_backward_dkv"
    PREFIX: ClassVar[str] = "bwd_dkv"
    HEADER: ClassVar[str] = "flashsmith/sm80/backward_keys.cuh"
    CPP_TYPE: ClassVar[str] = "flashsmith::Sm80KeyGradientsConfig"
    CPP_METHODS: ClassVar[str] = "flashsmith/sm80/backward_keys_methods.cuh"
    CPP_ENTRY: ClassVar[str] = "flashsmith::sm80::backward_keys"
    BUILD_RULES: ClassVar[tuple[Rule, ...]]

    dtype: DType = knob((DType.FP16, DType.BF16), "element type of all tensors")
    d_head: int = knob(WIDTHS, "head dimension the kernel is built for")
    B_c: int = knob(ROWS, "keys that a cta owns")
    B_r: int = knob(ROWS, "query rows that it takes at a time")
    n_warps: int = knob(WARPS, "warps of a cta; each owns B_c / n_warps keys")
    gradients: KeyGradients = knob(
        tuple(KeyGradients), "which gradients it computes", "of_{}", absent=KeyGradients.BOTH
    )
    buffered: bool = flag("buffer", _BUFFERED)

    @property
    def tile_q(self) -> int:
        """Query rows of one step."""
        return self.B_r

    @property
    def tile_k(self) -> int:
        """Keys of one cta."""
        return self.B_c

    @property
    def owned(self) -> int:
        """It owns keys."""
        return self.B_c

    @property
    def walked(self) -> int:
        """It walks query rows."""
        return self.B_r

    @property
    def gradients_held(self) -> int:
        """Two, or the one that it is for."""
        return 2 if self.gradients is KeyGradients.BOTH else 1

    def smem_bytes(self, elem_size: int = 2) -> int:
        """K stays, V where dP is wanted; Q, dO and statistics of their rows have stages."""
        keys = (1 if self.gradients is KeyGradients.DV else 2) * self.B_c * self.d_head * elem_size
        rows = self.B_r * (2 * self.d_head * elem_size + STATISTICS_BYTES)
        return keys + self.stages * rows


@dataclass(frozen=True, slots=True, order=True)
class Sm80QueryGradientsConfig(Sm80TilePart):
    """dQ of a q tile, summed over the kv blocks that it sees."""

    NAME: ClassVar[str] = "sm80_backward_dq"
    PREFIX: ClassVar[str] = "bwd_dq"
    HEADER: ClassVar[str] = "flashsmith/sm80/backward_queries.cuh"
    CPP_TYPE: ClassVar[str] = "flashsmith::Sm80QueryGradientsConfig"
    CPP_METHODS: ClassVar[str] = "flashsmith/sm80/backward_queries_methods.cuh"
    CPP_ENTRY: ClassVar[str] = "flashsmith::sm80::backward_queries"
    BUILD_RULES: ClassVar[tuple[Rule, ...]]

    dtype: DType = knob((DType.FP16, DType.BF16), "element type of all tensors")
    d_head: int = knob(WIDTHS, "head dimension the kernel is built for")
    B_r: int = knob(ROWS, "query rows that a cta owns")
    B_c: int = knob(ROWS, "keys that it takes at a time")
    n_warps: int = knob(WARPS, "warps of a cta; each owns B_r / n_warps rows")
    buffered: bool = flag("buffer", _BUFFERED)

    @property
    def tile_q(self) -> int:
        """Query rows of one cta."""
        return self.B_r

    @property
    def tile_k(self) -> int:
        """Keys of one step."""
        return self.B_c

    @property
    def owned(self) -> int:
        """It owns query rows."""
        return self.B_r

    @property
    def walked(self) -> int:
        """It walks keys."""
        return self.B_c

    def smem_bytes(self, elem_size: int = 2) -> int:
        """Q and dO stay; K and V have stages."""
        return 2 * (self.B_r + self.stages * self.B_c) * self.d_head * elem_size


@dataclass(frozen=True, slots=True, order=True)
class Sm80BiasGradientConfig(Sm80BackwardPart):
    """The gradient of a bias, summed over the sequences and heads that share it."""

    NAME: ClassVar[str] = "sm80_backward_dbias"
    PREFIX: ClassVar[str] = "bwd_dbias"
    HEADER: ClassVar[str] = "flashsmith/sm80/bias_gradient/kernel.cuh"
    CPP_TYPE: ClassVar[str] = "flashsmith::Sm80BiasGradientConfig"
    CPP_METHODS: ClassVar[str] = "flashsmith/sm80/bias_gradient/methods.cuh"
    CPP_ENTRY: ClassVar[str] = "flashsmith::sm80::backward_bias"

    dtype: DType = knob((DType.FP16, DType.BF16), "element type of q, k, v and o")
    d_head: int = knob(WIDTHS, "head dimension the kernel is built for")
    B_c: int = knob(ROWS, "keys of a cta")

    @property
    def tile_q(self) -> int:
        """Query rows of one cta: 16 a warp."""
        return 64

    @property
    def tile_k(self) -> int:
        """Keys of one cta."""
        return self.B_c

    @property
    def threads(self) -> int:
        """Threads of one block."""
        return 128

    def smem_bytes(self, elem_size: int = 2) -> int:
        """Q and dO, K and V of one head at a time."""
        return 2 * (self.tile_q + self.B_c) * self.d_head * elem_size


TILE_RULES = (
    Rule(
        "warp_has_16_rows",
        lambda c: c.rows_per_warp % MMA_ROWS != 0,
        "mma.sync works on 16 rows and the owned rows leave fewer to a warp",
        "use fewer warps or a larger owned tile",
    ),
    Rule(
        "gradients_fit_registers",
        lambda c: c.gradient_registers > MAX_GRADIENT_REGISTERS,
        f"a warp's gradients take more than {MAX_GRADIENT_REGISTERS} registers a thread",
        "use more warps, a smaller owned tile, or dK and dV apart",
    ),
)
Sm80KeyGradientsConfig.BUILD_RULES = TILE_RULES
Sm80QueryGradientsConfig.BUILD_RULES = TILE_RULES
