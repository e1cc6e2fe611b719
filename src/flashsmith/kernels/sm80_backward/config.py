"""What a backward pass on mma.sync is: a plan of launches, each with tiles of its own."""

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
from flashsmith.kernels.sm80_backward.parts import (
    ROWS,
    TILE_RULES,
    WARPS,
    WIDTHS,
    KeyGradients,
    Sm80BackwardPart,
    Sm80BiasGradientConfig,
    Sm80DeltaConfig,
    Sm80KeyGradientsConfig,
    Sm80QueryGradientsConfig,
)
from flashsmith.problem.attention import AttentionProblem

_DKV, _DQ = "dkv_{}_{}_{}", "dq_{}_{}_{}"


@dataclass(frozen=True, slots=True, order=True)
class Sm80BackwardConfig(Sm80BackwardPart):
    """dQ, dK and dV by three kernels (four with `apart`), one after the other.

    The bits are the same every time: each sum has one owner, who takes its terms in order.
    """

    NAME: ClassVar[str] = "sm80_backward"
    PREFIX: ClassVar[str] = "bwd"
    HEADER: ClassVar[str] = ""  # its kernels have one each
    CPP_TYPE: ClassVar[str] = "flashsmith::Sm80BackwardConfig"
    CPP_ENTRY: ClassVar[str] = ""
    BUILD_RULES: ClassVar[tuple[Rule, ...]]

    dtype: DType = knob((DType.FP16, DType.BF16), "element type of all tensors")
    d_head: int = knob(WIDTHS, "head dimension the kernels are built for")
    dkv_keys: int = knob(ROWS, "keys that a cta of the dK and dV kernel owns", _DKV)
    dkv_rows: int = knob(ROWS, "query rows that it takes at a time", _DKV)
    dkv_warps: int = knob(WARPS, "its warps; each owns dkv_keys / dkv_warps keys", _DKV)
    dq_rows: int = knob(ROWS, "query rows that a cta of the dQ kernel owns", _DQ)
    dq_keys: int = knob(ROWS, "keys that it takes at a time", _DQ)
    dq_warps: int = knob(WARPS, "its warps; each owns dq_rows / dq_warps query rows", _DQ)
    dkv_buffered: bool = flag(
        "dkv_buffer", "two stages of Q and dO: the next tile is copied while this is multiplied"
    )
    dq_buffered: bool = flag("dq_buffer", "two stages of K and V, likewise")
    apart: bool = flag(
        "apart", "dK and dV by a launch each: half the registers, and scores computed once more"
    )

    @property
    def delta(self) -> Sm80DeltaConfig:
        """The kernel that prepares query rows."""
        return Sm80DeltaConfig(self.dtype, self.d_head, clears=False, zeros=False, unseen_rows=0)

    @property
    def of_keys(self) -> tuple[Sm80KeyGradientsConfig, ...]:
        """The kernel of dK and dV, or one of each."""
        which = (KeyGradients.DV, KeyGradients.DK) if self.apart else (KeyGradients.BOTH,)
        tiles = (self.dkv_keys, self.dkv_rows, self.dkv_warps)
        return tuple(
            Sm80KeyGradientsConfig(self.dtype, self.d_head, *tiles, one, self.dkv_buffered)
            for one in which
        )

    @property
    def of_queries(self) -> Sm80QueryGradientsConfig:
        """The kernel of dQ."""
        tiles = (self.dq_rows, self.dq_keys, self.dq_warps)
        return Sm80QueryGradientsConfig(self.dtype, self.d_head, *tiles, self.dq_buffered)

    @property
    def of_bias(self) -> Sm80BiasGradientConfig:
        """The kernel of a bias's gradient: tiles that every architecture has room for."""
        return Sm80BiasGradientConfig(self.dtype, self.d_head, 64 if self.d_head <= 128 else 32)

    def kernels(self) -> tuple[KernelConfig, ...]:
        """What is compiled, in the order of the launches, where no bias has a gradient."""
        return (self.delta, *self.of_keys, self.of_queries)

    @property
    def tile_q(self) -> int:
        """The longest tile of query rows of its kernels."""
        return max(self.dkv_rows, self.dq_rows)

    @property
    def tile_k(self) -> int:
        """The longest tile of keys of its kernels."""
        return max(self.dkv_keys, self.dq_keys)

    @property
    def threads(self) -> int:
        """Threads of its largest cta."""
        return max(kernel.threads for kernel in self.kernels())

    def smem_bytes(self, elem_size: int = 2) -> int:
        """Shared memory of the cta that needs most."""
        return max(kernel.smem_bytes(elem_size) for kernel in self.kernels())

    def plan(self, problem: AttentionProblem, sm_count: int) -> Plan:
        """The launches of this configuration on a problem that it computes."""
        from flashsmith.kernels.sm80_backward.plan import plan_backward

        del sm_count  # a cta a tile
        return plan_backward(self, problem)

    @classmethod
    def named_sets(cls) -> Mapping[str, Callable[[], Sequence[KernelConfig]]]:
        """The sets of this kernel that a KEY may name."""
        from flashsmith.kernels.sm80_backward import sets

        return sets.NAMED_SETS

    @classmethod
    def autotuning_grid(cls) -> Sequence[KernelConfig]:
        """What tuning measures: the set."""
        from flashsmith.kernels.sm80_backward import sets

        return sets.backward_configs()

    @classmethod
    def candidates(cls, problem: AttentionProblem, arch: Arch) -> Sequence[KernelConfig]:
        """What to run where nothing was measured, best first."""
        from flashsmith.kernels.sm80_backward import rule

        return rule.candidates(problem, arch)


def _of_part(rule: Rule, prefix: str) -> Rule:
    """A rule of one kernel, as a rule of the whole."""

    def refuses(config: Sm80BackwardConfig) -> bool:
        parts = config.of_keys if prefix == "dkv" else (config.of_queries,)
        return any(rule.refuses(part) for part in parts)

    return Rule(f"{prefix}_{rule.name}", refuses, f"{prefix}: {rule.reason}", rule.advice)


Sm80BackwardConfig.BUILD_RULES = tuple(
    _of_part(rule, prefix) for prefix in ("dkv", "dq") for rule in TILE_RULES
)
