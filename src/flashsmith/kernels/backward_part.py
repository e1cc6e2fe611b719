"""What the kernels of a backward pass have in common: each is a launch of a plan."""

from __future__ import annotations

from typing import ClassVar

from flashsmith.base.errors import Unsupported
from flashsmith.kernels.kernel import KernelConfig
from flashsmith.kernels.launch import Plan
from flashsmith.kernels.rules import Rule
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.needs import changed_scores


class BackwardPart(KernelConfig):
    """One kernel of a backward pass: a launch of its plan, and nothing that runs alone."""

    __slots__ = ()
    OPERATION: ClassVar[str] = "backward"
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


def require_gradients(config: KernelConfig, problem: AttentionProblem) -> None:
    """Raises for what the forward kernels can do and backward kernels cannot, by name."""
    changed = changed_scores(problem)
    if problem.mask.left is not None:
        changed.append("a left edge of the mask")
    if changed:
        raise Unsupported(
            f"{config.short_form()}: these kernels have no gradient with {changed[0]}; leave it "
            f"out, or use torch's own attention to train."
        )
