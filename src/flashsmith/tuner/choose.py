"""Which configuration computes a problem on a GPU, why, and what was passed over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from flashsmith.arch import Arch
from flashsmith.arch import get as get_arch
from flashsmith.base.errors import ConfigError, FlashsmithError, Unsupported
from flashsmith.config.families import FAMILIES
from flashsmith.config.kernel_config import KernelConfig
from flashsmith.config.parse import parse_config
from flashsmith.problem.attention_problem import AttentionProblem
from flashsmith.runtime.launch import require_computable
from flashsmith.tuner.measured import Candidate, MeasuredTable, distance, known_measurements


@dataclass(frozen=True, slots=True)
class Rejected:
    """A configuration, or a whole family, that was passed over."""

    what: str
    reason: str


@dataclass(frozen=True, slots=True)
class Choice:
    """What runs and why; `config` is None where no kernel of flashsmith runs."""

    config: KernelConfig | None
    source: str  # "given", "measured on this machine", "shipped measurement", "rule", "torch"
    reason: str
    rejected: tuple[Rejected, ...] = ()

    def __str__(self) -> str:
        name = self.config.short_form() if self.config is not None else "no kernel of flashsmith"
        lines = [f"{name}: {self.reason}"]
        lines += [f"  not {item.what}: {item.reason}" for item in self.rejected]
        return "\n".join(lines)


def choose(
    problem: AttentionProblem,
    arch: str,
    *,
    gpu: str = "",
    given: KernelConfig | None = None,
    measurements: Sequence[MeasuredTable] | None = None,
) -> Choice:
    """The configuration for `problem` on `arch`: given, measured, or by the rule that always fits.

    `gpu` is the name by which measurements are looked up. A given configuration is used or refused,
    never replaced.
    """
    limits = get_arch(arch)
    if given is not None:
        require_computable(given, problem)
        given.require_buildable(limits)
        return Choice(given, "given", "given by the caller")
    tables = known_measurements(gpu) if measurements is None else measurements
    passed: list[Rejected] = []
    for table in tables:
        choice = _measured_choice(table, gpu, problem, limits, passed)
        if choice is not None:
            return choice
    return _ruled_choice(problem, limits, passed)


def _measured_choice(
    table: MeasuredTable, gpu: str, problem: AttentionProblem, arch: Arch, passed: list[Rejected]
) -> Choice | None:
    """The fastest configuration of the nearest measured problem, or None."""
    near = [(distance(problem, item.problem), item) for item in table.of_gpu(gpu)]
    least = min((d for d, _ in near), default=float("inf"))
    if least == float("inf"):
        return None
    ranked = sorted((item for d, item in near if d == least), key=lambda item: item.median_us)
    for place, item in enumerate(ranked):
        config, obstacle = _usable(item, problem, arch)
        if config is None:
            passed.append(Rejected(item.config, obstacle))
            continue
        slower = tuple(
            Rejected(other.config, f"{other.median_us:.1f} µs against {item.median_us:.1f}")
            for other in ranked[place + 1 :]
        )
        where = (
            "this shape" if least == 0 else f"the nearest shape measured, {_shape(item.problem)}"
        )
        reason = f"{table.label}: {item.median_us:.1f} µs on {where}, {gpu}"
        return Choice(config, table.label, reason, (*passed, *slower))
    return None


def _usable(
    item: Candidate, problem: AttentionProblem, arch: Arch
) -> tuple[KernelConfig | None, str]:
    try:
        config = parse_config(item.config)
    except ConfigError as error:
        return None, str(error)
    fields: dict[str, Any] = {"dtype": problem.dtype}  # Any: replace() takes a field of each family
    config = replace(config, **fields)
    obstacle = _obstacle(config, problem, arch)
    return (config, "") if not obstacle else (None, obstacle)


def _ruled_choice(problem: AttentionProblem, arch: Arch, passed: list[Rejected]) -> Choice:
    """The first candidate that fits; the families of newer GPUs are asked first."""
    chosen: KernelConfig | None = None
    for family in reversed(FAMILIES):
        if not family.runs_on(arch.name):
            passed.append(Rejected(f"the {family.FAMILY} family", f"no kernels for {arch.name}"))
            continue
        for config in family.candidates(problem, arch):
            obstacle = _obstacle(config, problem, arch)
            if not obstacle and chosen is None:
                chosen = config
            else:
                passed.append(
                    Rejected(config.short_form(), obstacle or "the rule ranks it lower here")
                )
    if chosen is None:
        raise Unsupported(
            f"No configuration computes {_shape(problem)} on {arch.name}; flash_attention takes "
            f"d_head up to 256 in FP16 and BF16."
        )
    reason = "nothing was measured near this shape; the first of the rule's list that fits"
    return Choice(chosen, "rule", reason, tuple(passed))


def _obstacle(config: KernelConfig, problem: AttentionProblem, arch: Arch) -> str:
    """Why `config` cannot compute `problem` on `arch`, or an empty text."""
    try:
        require_computable(config, problem)
        config.require_buildable(arch)
    except FlashsmithError as error:
        return str(error).removeprefix(f"{config.short_form()}: ").rstrip(".")
    return ""


def _shape(problem: AttentionProblem) -> str:
    heads = f"{problem.heads}" + (
        f":{problem.kv_heads}" if problem.kv_heads != problem.heads else ""
    )
    mask = "causal" if problem.causal else "full"
    return (
        f"batch {problem.batch}, heads {heads}, {problem.q_len} x {problem.k_len}, "
        f"d_head {problem.d_head}, {mask}, {problem.dtype.name}"
    )
