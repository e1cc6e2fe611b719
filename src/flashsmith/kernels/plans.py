"""From a configuration and a problem to a plan, whichever kernel it is."""

from __future__ import annotations

from flashsmith.base.errors import ArgumentError, Unsupported
from flashsmith.kernels.kernel import KernelConfig
from flashsmith.kernels.launch import Plan
from flashsmith.kernels.width import D_HEAD_STEP
from flashsmith.problem.attention import FACTS, AttentionProblem
from flashsmith.problem.needs import Needs, facts_that_hold

_ANY_SM_COUNT = 132  # what is fixed at compile time does not depend on it


def plan(config: KernelConfig, problem: AttentionProblem, *, sm_count: int) -> Plan:
    """The launches of `config` on `problem`; raises when the kernel cannot compute it."""
    require_computable(config, problem)
    return config.plan(problem, sm_count)


def needs_of(config: KernelConfig, problem: AttentionProblem) -> Needs:
    """What a kernel of `config` must know of `problem` when it is compiled; raises as `plan`."""
    launches = plan(config, problem, sm_count=_ANY_SM_COUNT)
    own = (launch.needs for launch in launches if launch.config == config)
    return next(own, launches[0].needs)  # the list of tiles comes before the kernel itself


def kernels_of(
    config: KernelConfig, problem: AttentionProblem
) -> tuple[tuple[KernelConfig, Needs], ...]:
    """What is compiled for the launches of a plan, in their order; raises as `plan`."""
    launches = plan(config, problem, sm_count=_ANY_SM_COUNT)
    return tuple((launch.config, launch.needs) for launch in launches)


def scratch_bytes(launches: Plan) -> int:
    """Memory that a call brings along for the launches of its plan to hand results over in."""
    return max((launch.scratch_bytes for launch in launches), default=0)


def sum_order(launches: Plan) -> str:
    """What of a plan decides, beside the configuration, in which order sums are taken."""
    return " ".join(launch.sum_order for launch in launches if launch.sum_order)


def cut(launches: Plan) -> str:
    """How every tile of a plan is cut along the keys, in words, where it is."""
    return next((launch.cut for launch in launches if launch.cut), "")


def ends_together(launches: Plan) -> bool:
    """Whether tiles are split so that no cta waits for the others' last wave."""
    return all(launch.ends_together for launch in launches)


def require_computable(config: KernelConfig, problem: AttentionProblem) -> None:
    """Raises unless a kernel of `config` can compute `problem`, whichever it is."""
    if problem.operation != config.OPERATION:
        raise ArgumentError(
            f"{config.short_form()}: the problem is a {problem.operation} pass; these kernels "
            f"compute the {config.OPERATION} pass; give a configuration of {problem.operation} "
            f"kernels."
        )
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
    if problem.d_v % D_HEAD_STEP:
        raise Unsupported(
            f"{config.short_form()}: d_v is {problem.d_v}; this kernel takes multiples of "
            f"{D_HEAD_STEP}."
        )
    for name in facts_that_hold(problem):
        if name in config.REFUSED_FACTS:
            raise Unsupported(
                f"{config.short_form()}: these kernels do not compute {name} "
                f"({FACTS[name].doc}); leave it out or use another configuration."
            )
    refusal = config.refused_problem(problem)
    if refusal:
        raise Unsupported(f"{config.short_form()}: {refusal}; use another configuration.")
    reason = config.depends_on_batch(problem) if problem.is_batch_invariant else ""
    if reason:
        raise Unsupported(
            f"{config.short_form()}: {reason}, so bits depend on the batch; use another "
            f"configuration, or leave batch_invariant out."
        )
    if problem.kv_heads == 0 or problem.heads == 0:
        raise ArgumentError(
            f"heads is {problem.heads} and kv_heads is {problem.kv_heads}; both must be at least 1."
        )
