"""What one forward kernel on mma.sync is: every field is a template argument in C++."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from flashsmith.arch import Arch
from flashsmith.base.dtypes import DType
from flashsmith.base.fields import flag, knob
from flashsmith.kernels.arguments import Arguments
from flashsmith.kernels.kernel import KernelConfig
from flashsmith.kernels.rules import Rule
from flashsmith.kernels.sm80_forward.arguments import ForwardArguments
from flashsmith.problem.attention import AttentionProblem

if TYPE_CHECKING:
    from flashsmith.kernels.launch import Plan

MMA_ROWS = 16  # of the A operand of mma.sync m16n8k16: what a warp works on at least
TILE = 8  # elements along the contraction that a tile of the `..._tiles` fields stands for
LANES = 32
SPAN = 16  # elements of the contraction that one mma.sync takes
MAX_V_COLS = 256  # of V and O that a cta computes; a wider head is shared out among ctas
MAX_O_REGISTERS = 128  # a thread's part of O: more leaves no room for S and fragments
STEP_REGISTERS = 224  # what O, Q, S and fragments may take together before S is taken in steps

_D_TILES = (0, 2, 4, 8, 16, 32)  # of d_head, 256 / 8 at most
_C_TILES = (0, 2, 4, 8, 16)  # of B_c, 128 / 8 at most
_TILES_WORD = "load_{}_{}_{}_tiles"


@dataclass(frozen=True, slots=True)
class FragmentPlan:
    """How one operand's fragments are read from shared memory for one kv block of the product."""

    steps: int  # reads it takes to pass along the whole contraction
    stages: int  # register buffers: 2 when the next read overlaps the products of this one
    registers: int  # 32-bit registers a thread, all stages together


@dataclass(frozen=True, slots=True)
class RegisterEstimate:
    """32-bit registers a thread by role; the compiler adds addresses and temporaries."""

    o: int
    s: int
    q: int
    k: int
    v: int

    @property
    def total(self) -> int:
        """O and S live throughout; Q and K fragments are dead when V's are alive."""
        return self.o + self.s + max(self.q + self.k, self.v)


@dataclass(frozen=True, slots=True, order=True)
class FlashForwardKernelConfig(KernelConfig):
    """One forward kernel built on mma.sync: hashable, ordered, and text.

    A field or legal value is added here and nowhere else: C++ is written from these lines.
    """

    NAME: ClassVar[str] = "sm80_forward"
    FORMER_NAMES: ClassVar[tuple[str, ...]] = ("mma",)
    HEADER: ClassVar[str] = "flashsmith/sm80/forward.cuh"
    PRELUDE: ClassVar[tuple[str, ...]] = (
        "flashsmith/base/dtype.cuh",
        "flashsmith/base/tensor_arg.cuh",
    )
    CPP_TYPE: ClassVar[str] = "flashsmith::FlashForwardKernelConfig"
    CPP_METHODS: ClassVar[str] = "flashsmith/sm80/config_methods.cuh"
    CPP_ENTRY: ClassVar[str] = "flashsmith::sm80::forward"
    ARGUMENTS: ClassVar[type[Arguments]] = ForwardArguments
    REFUSED_FACTS: ClassVar[tuple[str, ...]] = ("page",)
    HOST_HEADER: ClassVar[str] = "launch_sm80_forward.cuh"
    BUILD_RULES: ClassVar[tuple[Rule, ...]]
    AUTOTUNE_RULES: ClassVar[tuple[Rule, ...]]

    dtype: DType = knob((DType.FP16, DType.BF16), "element type of Q, K, V and O")
    d_head: int = knob((64, 128, 256, 512), "head dimension the kernel is built for")
    B_r: int = knob((64, 128), "rows of Q that a cta owns")
    B_c: int = knob((32, 64, 128), "rows of K and V that one step works on")
    n_warps: int = knob((4, 8), "warps of a cta; each owns B_r / n_warps rows of Q")
    async_copy: bool = flag("async", "global to shared memory by cp.async, past the registers")
    eager_load_blocks: bool = flag(
        "eager", "starts the copy of the next K or V block before the product that precedes its use"
    )
    swizzled: bool = flag(
        "swizzled", "XOR layout in shared memory: ldmatrix without bank conflicts"
    )
    Q_mma_load_K_tiles: int = knob(
        _D_TILES,
        "tiles of 8 along d_head that a read of Q brings to registers; 0: all, once",
        _TILES_WORD,
    )
    K_mma_load_K_tiles: int = knob(
        _D_TILES,
        "tiles of 8 along d_head that a read of K brings to registers; 0: all",
        _TILES_WORD,
    )
    V_mma_load_K_tiles: int = knob(
        _C_TILES, "tiles of 8 along B_c that a read of V brings to registers; 0: all", _TILES_WORD
    )
    mma_double_buffer_loads: bool = flag(
        "buffer", "reads the next fragments while the tensor cores work on these"
    )
    optimized_softmax: bool = flag(
        "opt_softmax", "folds the scale into the exponent: one fused multiply-add an element"
    )

    @property
    def tile_q(self) -> int:
        """Rows of Q that one cta owns."""
        return self.B_r

    @property
    def tile_k(self) -> int:
        """Rows of K and V of one step."""
        return self.B_c

    @property
    def threads(self) -> int:
        """Threads of one cta."""
        return self.n_warps * LANES

    @property
    def rows_per_warp(self) -> int:
        """Rows of Q that one warp owns."""
        return self.B_r // self.n_warps

    @property
    def v_cols(self) -> int:
        """Columns of V and O that a cta computes: all, or as many as registers hold."""
        return min(self.d_head, MAX_V_COLS)

    def smem_bytes(self, elem_size: int = 2) -> int:
        """Q stays for the whole cta, K and V hold one kv block each; O reuses Q's room."""
        return (self.B_r * self.d_head + self.B_c * (self.d_head + self.v_cols)) * elem_size

    def num_ctas_per_sm(self, max_smem_bytes: int) -> int:
        """Blocks that `max_smem_bytes` of shared memory hold at once, other limits aside."""
        return max_smem_bytes // self.smem_bytes()

    @property
    def step_cols(self) -> int:
        """Columns of S that a warp holds at a time: B_c, or a part of it where registers end."""
        columns = self.B_c
        while columns > SPAN and self._step_registers(columns) > STEP_REGISTERS:
            columns //= 2
        return columns

    def _step_registers(self, columns: int) -> int:
        q_held = 0 if self.Q_mma_load_K_tiles else self.rows_per_warp * self.d_head // 64
        q_span = self.rows_per_warp // 4 if self.Q_mma_load_K_tiles else 0
        o_and_s = self.rows_per_warp * (self.v_cols + columns) // LANES
        return o_and_s + q_held + q_span + columns // 4

    def fragments(self) -> dict[str, FragmentPlan]:
        """How Q, K and V fragments are read: steps, stages and registers."""
        return {
            "Q": self._plan(self.rows_per_warp, self.d_head, self.Q_mma_load_K_tiles),
            "K": self._plan(self.step_cols, self.d_head, self.K_mma_load_K_tiles),
            "V": self._plan(self.v_cols, self.step_cols, self.V_mma_load_K_tiles),
        }

    def registers(self) -> RegisterEstimate:
        """32-bit registers a thread by role."""
        plans = self.fragments()
        return RegisterEstimate(
            o=self.rows_per_warp * self.v_cols // LANES,
            s=self.rows_per_warp * self.step_cols // LANES,
            q=plans["Q"].registers,
            k=plans["K"].registers,
            v=plans["V"].registers,
        )

    def _plan(self, rows: int, contraction: int, tiles: int) -> FragmentPlan:
        width = min(tiles * TILE, contraction) or contraction
        stages = 2 if self.mma_double_buffer_loads and width < contraction else 1
        registers = rows * width * self.dtype.bytes // (4 * LANES) * stages
        return FragmentPlan(contraction // width, stages, registers)

    @classmethod
    def runs_on(cls, arch_name: str) -> bool:
        """mma.sync, ldmatrix and cp.async exist from sm_80 on."""
        return arch_name.startswith("sm_")

    def plan(self, problem: AttentionProblem, sm_count: int) -> Plan:
        """The launches of this configuration on a problem that it computes."""
        from flashsmith.kernels.sm80_forward.plan import plan_forward

        return plan_forward(self, problem)

    @classmethod
    def named_sets(cls) -> Mapping[str, Callable[[], Sequence[KernelConfig]]]:
        """The sets of this kernel that a KEY may name."""
        from flashsmith.kernels.sm80_forward import sets

        return sets.NAMED_SETS

    @classmethod
    def candidates(cls, problem: AttentionProblem, arch: Arch) -> Sequence[KernelConfig]:
        """What to run where nothing was measured, best first."""
        from flashsmith.kernels.sm80_forward import rule

        return rule.candidates(problem, arch)

    @classmethod
    def autotuning_grid(cls) -> Sequence[KernelConfig]:
        """The points that tuning starts from, before `AUTOTUNE_RULES`."""
        from flashsmith.kernels.sm80_forward import sets

        return sets.autotuning_grid((DType.BF16, DType.FP16))


def _too_many_tiles(config: FlashForwardKernelConfig) -> bool:
    halves = 2 if config.mma_double_buffer_loads else 1
    pairs = (
        (config.Q_mma_load_K_tiles, config.d_head),
        (config.K_mma_load_K_tiles, config.d_head),
        (config.V_mma_load_K_tiles, config.B_c),
    )
    return any(tiles > contraction // halves // TILE for tiles, contraction in pairs)


_EAGER_NEEDS_ASYNC = Rule(
    "eager_needs_async",
    lambda c: c.eager_load_blocks and not c.async_copy,
    "eager prefetch has nothing to overlap when copies are synchronous",
    "add async or drop eager",
)
_Q_TILES_MATCH_K_TILES = Rule(
    "q_tiles_match_k_tiles",
    lambda c: c.Q_mma_load_K_tiles not in (0, c.K_mma_load_K_tiles),
    "Q and K are read in step along d_head, so Q tiles equal K tiles or are 0",
    "make the first two load numbers equal or the first one 0",
)
_WARP_HAS_16_ROWS = Rule(
    "warp_has_16_rows",
    lambda c: c.rows_per_warp % MMA_ROWS != 0,
    "mma.sync works on 16 rows of Q and 8 warps at B_r 64 leave 8 to each",
    "use 4 warps or B_r 128",
)
_TILES_FIT_CONTRACTION = Rule(
    "tiles_fit_contraction",
    _too_many_tiles,
    "a read cannot bring more tiles than the contraction has, or half of them with buffer",
    "lower the load numbers or use 0 for the whole contraction",
)
_OUTPUT_FITS_REGISTERS = Rule(
    "output_fits_registers",
    lambda c: c.rows_per_warp * c.v_cols // LANES > MAX_O_REGISTERS,
    f"a warp's rows of O take more than {MAX_O_REGISTERS} registers a thread",
    "use 8 warps or B_r 64",
)

FlashForwardKernelConfig.BUILD_RULES = (
    _EAGER_NEEDS_ASYNC,
    _Q_TILES_MATCH_K_TILES,
    _WARP_HAS_16_ROWS,
    _TILES_FIT_CONTRACTION,
    _OUTPUT_FITS_REGISTERS,
)
FlashForwardKernelConfig.AUTOTUNE_RULES = (
    _EAGER_NEEDS_ASYNC,
    _Q_TILES_MATCH_K_TILES,
    _WARP_HAS_16_ROWS,
    Rule(
        "small_tile_reads_q_in_steps",
        lambda c: c.B_r == 64 and c.B_c == 32 and c.Q_mma_load_K_tiles == 0,
        "at B_r 64, B_c 32 the registers that hold all of Q cost more than reading it again",
        "use Q tiles other than 0",
    ),
    Rule(
        "square_tile_holds_q",
        lambda c: c.B_r == 64 and c.B_c == 64 and c.Q_mma_load_K_tiles != 0,
        "at B_r 64, B_c 64 there are registers for all of Q and reading it again only costs",
        "use Q tiles 0",
    ),
    Rule(
        "large_tile_reads_q_in_steps",
        lambda c: c.B_r == 128 and c.Q_mma_load_K_tiles == 0,
        "at B_r 128 a warp owns 32 rows and holding all of Q spills registers",
        "use Q tiles other than 0",
    ),
)
