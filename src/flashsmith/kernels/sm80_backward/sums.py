"""What a backward pass on mma.sync is that adds dQ up in memory: five products, not seven."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from flashsmith.arch import Arch
from flashsmith.base.dtypes import DType
from flashsmith.base.fields import flag, knob
from flashsmith.kernels.kernel import KernelConfig
from flashsmith.kernels.launch import Plan
from flashsmith.kernels.rules import Rule
from flashsmith.kernels.sm80_backward.parts import WIDTHS, Sm80BackwardPart, Sm80DeltaConfig
from flashsmith.kernels.sm80_backward.sum_parts import (
    BLOCK_KEYS,
    BLOCK_ROWS,
    BLOCK_RULES,
    BLOCK_WARPS,
    BUFFERED,
    ROLES,
    ROUNDS,
    TURN,
    UNORDERED,
    Sm80BlocksConfig,
    Sm80RoundingConfig,
)
from flashsmith.problem.attention import AttentionProblem


@dataclass(frozen=True, slots=True, order=True)
class Sm80SumsConfig(Sm80BackwardPart):
    """dQ, dK and dV: row statistics, then kv blocks, then dQ from float32 to 16 bits.

    The bits are the same every time: kv blocks add to dQ in one order.
    """

    NAME: ClassVar[str] = "sm80_backward_sums"
    PREFIX: ClassVar[str] = "bwd_sums"
    HEADER: ClassVar[str] = ""  # its kernels have one each
    CPP_TYPE: ClassVar[str] = "flashsmith::Sm80SumsConfig"
    CPP_ENTRY: ClassVar[str] = ""
    BUILD_RULES: ClassVar[tuple[Rule, ...]]
    REFUSED_FACTS: ClassVar[tuple[str, ...]] = (
        *Sm80BackwardPart.REFUSED_FACTS,
        *("softcap", "sequences", "bias"),
    )

    dtype: DType = knob((DType.FP16, DType.BF16), "element type of all tensors")
    d_head: int = knob(WIDTHS, "head dimension the kernels are built for")
    B_c: int = knob(BLOCK_KEYS, "keys that a cta owns")
    B_r: int = knob(BLOCK_ROWS, "query rows that it takes at a time")
    n_warps: int = knob(BLOCK_WARPS, "its warps")
    roles: bool = flag("roles", ROLES)
    buffered: bool = flag("buffer", BUFFERED)
    unordered: bool = flag("unordered", UNORDERED)
    turn: int = knob((1, 2), TURN, "turn_{}", absent=1)
    rounds: bool = flag("rounds", ROUNDS)
    section_mb: int = knob(
        (40, 160, 320),
        "MB of Q, dO and dQ whose heads are drawn together, one block of each at a time",
        "section_{}",
        absent=40,
    )

    @property
    def delta(self) -> Sm80DeltaConfig:
        """The kernel that prepares query rows, and clears counters."""
        return Sm80DeltaConfig(
            self.dtype,
            self.d_head,
            clears=not self.unordered,
            zeros=self.unordered,
            unseen_rows=self.B_r if self.rounds else 0,
        )

    @property
    def blocks(self) -> Sm80BlocksConfig:
        """The kernel of all products."""
        return Sm80BlocksConfig(*(getattr(self, name) for name in Sm80BlocksConfig.knobs()))

    @property
    def rounding(self) -> Sm80RoundingConfig:
        """The kernel that rounds dQ."""
        return Sm80RoundingConfig(self.dtype, self.d_head, self.B_c, self.B_r)

    def kernels(self) -> tuple[KernelConfig, ...]:
        """What is compiled, in the order of the launches."""
        return (self.delta, self.blocks, *(() if self.rounds else (self.rounding,)))

    @property
    def repeats_bits(self) -> bool:
        """Sums into dQ have an order, unless they are taken in any."""
        return not self.unordered

    def depends_on_batch(self, problem: AttentionProblem) -> str:
        """Sums in any order differ from run to run."""
        return "its sums are taken in any order" * self.unordered

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
        """Threads of its largest cta."""
        return max(kernel.threads for kernel in self.kernels())

    def smem_bytes(self, elem_size: int = 2) -> int:
        """Shared memory of the cta that needs most."""
        return max(kernel.smem_bytes(elem_size) for kernel in self.kernels())

    def plan(self, problem: AttentionProblem, sm_count: int) -> Plan:
        """The launches of this configuration on a problem that it computes."""
        from flashsmith.kernels.sm80_backward.sums_plan import plan_sums

        del sm_count  # a cta a kv block
        return plan_sums(self, problem)

    @classmethod
    def named_sets(cls) -> Mapping[str, Callable[[], Sequence[KernelConfig]]]:
        """The sets of this kernel that a KEY may name."""
        from flashsmith.kernels.sm80_backward import sets

        return sets.NAMED_SUMS

    @classmethod
    def autotuning_grid(cls) -> Sequence[KernelConfig]:
        """What tuning measures: the set."""
        from flashsmith.kernels.sm80_backward import sets

        return sets.sums_configs()

    @classmethod
    def candidates(cls, problem: AttentionProblem, arch: Arch) -> Sequence[KernelConfig]:
        """What to run where nothing was measured, best first."""
        from flashsmith.kernels.sm80_backward import rule

        return rule.sums_candidates(problem, arch)


def _of_blocks(rule: Rule) -> Rule:
    """A rule of the kernel of all products, as a rule of the whole."""
    return Rule(rule.name, lambda config: rule.refuses(config.blocks), rule.reason, rule.advice)


Sm80SumsConfig.BUILD_RULES = tuple(_of_blocks(rule) for rule in BLOCK_RULES)
