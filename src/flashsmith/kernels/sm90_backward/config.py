"""What a backward pass on wgmma and TMA is: a plan of three launches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from flashsmith.arch import Arch
from flashsmith.base.dtypes import DType
from flashsmith.base.fields import flag, knob
from flashsmith.kernels.kernel import KernelConfig
from flashsmith.kernels.launch import Plan
from flashsmith.kernels.rules import Rule
from flashsmith.kernels.sm90_backward.parts import (
    ADDERS,
    EARLY_POLLS,
    EARLY_RELEASE,
    EARLY_START,
    HEADS_INNER,
    MASKS_FIRST,
    PART_MB,
    RISING,
    ROUNDS_DQ,
    SHORT_LAST,
    STAGGERED,
    TILE_RULES,
    TWO_PASSES,
    V_HALVES,
    WIDTHS,
    Sm90BackwardPart,
    Sm90ConvertConfig,
    Sm90QueriesConfig,
    Sm90RowsConfig,
    Sm90TilesConfig,
    has_roles,
)
from flashsmith.problem.attention import AttentionProblem


@dataclass(frozen=True, slots=True, order=True)
class Sm90BackwardConfig(Sm90BackwardPart):
    """dQ, dK and dV: row statistics, then kv blocks, then dQ from float32 to 16 bits.

    The bits are the same every time, unless `unordered` says that they need not be.
    """

    NAME: ClassVar[str] = "sm90_backward"
    PREFIX: ClassVar[str] = "hopper_bwd"
    HEADER: ClassVar[str] = ""  # its kernels have one each
    CPP_TYPE: ClassVar[str] = "flashsmith::Sm90BackwardConfig"
    CPP_ENTRY: ClassVar[str] = ""
    BUILD_RULES: ClassVar[tuple[Rule, ...]] = TILE_RULES
    AUTOTUNE_RULES: ClassVar[tuple[Rule, ...]] = TILE_RULES

    dtype: DType = knob((DType.FP16, DType.BF16), "element type of all tensors")
    d_head: int = knob(WIDTHS, "head dimension the kernels are built for")
    ds_stages: int = knob((2, 3), "tiles of dS that shared memory holds", "ds_{}")
    turns: bool = flag("turns", "warpgroups take turns in issuing products")
    fold: bool = flag(
        "fold", "LSE and delta enter S and dP as one more step of the products, not by loads"
    )
    early_dv: bool = flag("early_dv", "dV is multiplied while dS is computed, not after it")
    late_fences: bool = flag(
        "late_fences", "dS and dQ are published behind the next products, where the fence is free"
    )
    dq_red: bool = flag("dq_red", "dQ is added from registers, not through shared memory in bulk")
    unordered: bool = flag("unordered", "sums into dQ in any order: other bits in every run")
    sections: bool = flag(
        "sections",
        "the same kv block of as many heads as L2 holds is drawn before the next: blocks of one "
        "head, which add to the same dQ, begin one after the other",
    )
    masks_first: bool = flag("masks_first", MASKS_FIRST)
    adders: int = knob((2, 3), ADDERS, "adders_{}", absent=2)
    early_polls: bool = flag("early_polls", EARLY_POLLS)
    two_passes: bool = flag("two_passes", TWO_PASSES)
    early_release: bool = flag("early_release", EARLY_RELEASE)
    v_halves: bool = flag("v_halves", V_HALVES)
    short_last: bool = flag("short_last", SHORT_LAST)
    rising: bool = flag("rising", RISING)
    section_mb: int = knob(
        (0, 10, 20, 40, 80, 160),
        "MB of Q, dO and dQ whose heads are drawn together, as many heads as divide all; without "
        "it 40 and any number of heads, with `sections` or a mask and sums in any order",
        "section_{}",
        absent=0,
    )
    heads_inner: bool = flag("heads_inner", HEADS_INNER)
    rounds_dq: bool = flag("rounds_dq", ROUNDS_DQ)
    early_start: bool = flag("early_start", EARLY_START)
    part_mb: int = knob((0, 10, 20, 80), PART_MB, "part_{}", absent=0)
    staggered: bool = flag("staggered", STAGGERED)

    @property
    def rows(self) -> Sm90RowsConfig:
        """The kernel that prepares query rows."""
        return Sm90RowsConfig(*(getattr(self, name) for name in Sm90RowsConfig.knobs()))

    @property
    def tiles(self) -> Sm90TilesConfig:
        """The kernel of all products, of problems without groups: a plan says what those take."""
        names = [name for name in Sm90TilesConfig.knobs() if name != "in_parts"]
        part = Sm90TilesConfig.of(**{name: getattr(self, name) for name in names})
        return replace(part, turns=False) if self.two_passes and has_roles(self.d_head) else part

    @property
    def convert(self) -> Sm90ConvertConfig | Sm90QueriesConfig:
        """The kernel that rounds dQ, or multiplies it."""
        if self.two_passes and has_roles(self.d_head):
            return Sm90QueriesConfig(*(getattr(self, name) for name in Sm90QueriesConfig.knobs()))
        return Sm90ConvertConfig(*(getattr(self, name) for name in Sm90ConvertConfig.knobs()))

    def kernels(self) -> tuple[KernelConfig, ...]:
        """What is compiled, in the order of the launches."""
        return (self.rows, self.tiles) if self.rounds_dq else (self.rows, self.tiles, self.convert)

    @property
    def repeats_bits(self) -> bool:
        """Sums into dQ have an order, unless they are taken in any."""
        return not self.unordered

    @property
    def tile_q(self) -> int:
        """Query rows of one step."""
        return self.tiles.tile_q

    @property
    def tile_k(self) -> int:
        """Keys of one block."""
        return self.tiles.tile_k

    @property
    def threads(self) -> int:
        """Threads of its largest block."""
        return self.tiles.threads

    def smem_bytes(self, elem_size: int = 2) -> int:
        """Shared memory of the block that needs most."""
        return self.tiles.smem_bytes(elem_size)

    def depends_on_batch(self, problem: AttentionProblem) -> str:
        """Sums in any order differ from run to run."""
        return "its sums are taken in any order" * self.unordered

    def refused_problem(self, problem: AttentionProblem) -> str:
        """A cap is put on products, and fold has LSE in them already; lists have one order."""
        if problem.softcap is not None and self.fold:
            return "it puts LSE into products (fold), on which a cap would have to be put first"
        if self.two_passes and problem.sequences:
            return "its launch for dQ knows no packed sequences"
        if problem.sequences and self.has_own_order:
            return "packed sequences are drawn by a list, in one order, with two adders"
        return ""

    @property
    def has_own_order(self) -> bool:
        """Whether a knob says how numbers become kv blocks and heads, or who adds their sums."""
        return bool(
            self.short_last
            or self.rising
            or self.section_mb
            or self.heads_inner
            or self.early_polls
            or self.two_passes
            or self.rounds_dq
            or self.early_start
            or self.part_mb
            or self.staggered
            or self.adders > 2
        )

    def plan(self, problem: AttentionProblem, sm_count: int) -> Plan:
        """The launches of this configuration on a problem that it computes."""
        from flashsmith.kernels.sm90_backward.plan import plan_backward

        return plan_backward(self, problem, sm_count)

    @classmethod
    def named_sets(cls) -> Mapping[str, Callable[[], Sequence[KernelConfig]]]:
        """The sets of this kernel that a KEY may name."""
        from flashsmith.kernels.sm90_backward import sets

        return sets.NAMED_SETS

    @classmethod
    def autotuning_grid(cls) -> Sequence[KernelConfig]:
        """What tuning measures: the set."""
        from flashsmith.kernels.sm90_backward import sets

        return sets.hopper_backward_configs()

    @classmethod
    def candidates(cls, problem: AttentionProblem, arch: Arch) -> Sequence[KernelConfig]:
        """What to run where nothing was measured, best first."""
        from flashsmith.kernels.sm90_backward import rule

        return rule.candidates(problem, arch)
