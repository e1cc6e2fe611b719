"""What the kernels of a backward pass have in common: each is a launch of a plan."""

from __future__ import annotations

from typing import ClassVar

from flashsmith.base.errors import Unsupported
from flashsmith.kernels.kernel import KernelConfig
from flashsmith.kernels.launch import Plan
from flashsmith.kernels.rules import Rule
from flashsmith.problem.attention import FACTS, AttentionProblem


class BackwardPart(KernelConfig):
    """One kernel of a backward pass: a launch of its plan, and nothing that runs alone."""

    __slots__ = ()
    OPERATION: ClassVar[str] = "backward"
    REFUSED_FACTS: ClassVar[tuple[str, ...]] = (
        *(name for name, what in FACTS.items() if what.exact),
        "window_left",
    )
    SET: ClassVar[str] = "bwd"  # that lists configurations of the whole
    PRELUDE: ClassVar[tuple[str, ...]] = (
        "flashsmith/base/dtype.cuh",
        "flashsmith/base/tensor_arg.cuh",
    )
    BUILD_RULES: ClassVar[tuple[Rule, ...]] = ()
    AUTOTUNE_RULES: ClassVar[tuple[Rule, ...]] = ()

    def plan(self, problem: AttentionProblem, sm_count: int) -> Plan:
        """A part has none."""
        raise Unsupported(
            f"{self.short_form()}: this is one launch of a backward pass; give the configuration "
            f"of the whole, as `flashsmith configs {self.SET}` lists them."
        )
