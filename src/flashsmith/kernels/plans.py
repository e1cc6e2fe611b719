"""How a problem is laid out for a kernel: one file a family, found by the configuration's class."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from flashsmith.base.errors import ArgumentError, Unsupported
from flashsmith.kernels.kernel import KernelConfig
from flashsmith.kernels.launch import LaunchPlan
from flashsmith.kernels.width import D_HEAD_STEP
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.needs import ForwardTraits

_ANY_SM_COUNT = 132  # what is fixed at compile time does not depend on it

# family → module and function, imported when a configuration of the family is launched
_PLANNERS = {
    "sm80_forward": ("flashsmith.kernels.sm80_forward.plan", "plan_mma"),
    "sm90_forward": ("flashsmith.kernels.sm90_forward.plan", "plan_hopper"),
}


def plan(
    config: KernelConfig, problem: AttentionProblem, *, lse: bool, sm_count: int
) -> LaunchPlan:
    """The launch of `config` on `problem`; raises when the kernel cannot compute it."""
    require_computable(config, problem)
    module, function = _PLANNERS[config.NAME]
    make: Callable[[KernelConfig, AttentionProblem, bool, int], LaunchPlan]
    make = getattr(import_module(module), function)
    return make(config, problem, lse, sm_count)


def traits_of(config: KernelConfig, problem: AttentionProblem, *, lse: bool) -> ForwardTraits:
    """What a kernel of `config` must know of `problem` when it is compiled; raises as `plan`."""
    return plan(config, problem, lse=lse, sm_count=_ANY_SM_COUNT).traits


def require_computable(config: KernelConfig, problem: AttentionProblem) -> None:
    """Raises unless a kernel of `config` can compute `problem`, whatever its family."""
    if problem.dtype is not config.dtype:
        raise ArgumentError(
            f"{config.short_form()}: the problem is {problem.dtype.name}; give tensors of "
            f"{config.dtype.name} or another configuration."
        )
    if problem.d_head % D_HEAD_STEP or not 0 < problem.d_head <= config.d_head:
        raise Unsupported(
            f"{config.short_form()}: d_head is {problem.d_head}; this kernel takes multiples of "
            f"{D_HEAD_STEP} up to {config.d_head}."
        )
    if problem.kv_heads == 0 or problem.heads == 0:
        raise ArgumentError(
            f"heads is {problem.heads} and kv_heads is {problem.kv_heads}; both must be at least 1."
        )
