"""Which configuration computes a problem on a GPU, why, and what was passed over."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from flashsmith.arch import Arch
from flashsmith.arch import get as get_arch
from flashsmith.base.errors import (
    ArgumentTypeError,
    ConfigError,
    FlashsmithError,
    Unsupported,
)
from flashsmith.base.loose_types import KnobValue
from flashsmith.kernels.catalogue import CATALOGUE
from flashsmith.kernels.kernel import KernelConfig
from flashsmith.kernels.parse import parse_config
from flashsmith.kernels.plans import require_computable
from flashsmith.kernels.width import D_HEAD_STEP, MAX_D_HEAD
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.text import problem_text
from flashsmith.tuner.choose.launched import launched_area
from flashsmith.tuner.choose.measured import (
    MeasuredConfig,
    MeasuredTable,
    distance,
    known_measurements,
    shipped_table,
    states_a_floor,
)

MARGIN = 0.03  # by which a neighbour's winner must be beaten: less is within what is estimated
PACKED_LENGTH = 4096  # that a packed sequence is taken for
_NOTHING: Mapping[KernelConfig, str] = {}


class Rejected(NamedTuple):
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
    time_us: float | None = None  # of the run that is explained, where it was on a GPU
    cut: str = ""  # how the device's launches cut tiles along the keys, where they do

    def __str__(self) -> str:
        name = self.config.short_form() if self.config is not None else "no kernel of flashsmith"
        took = "" if self.time_us is None else f"; this call: {self.time_us:.1f} µs on the GPU"
        lines = [f"{name}: {self.reason}{took}"]
        if self.config is not None and self.config.numeric_class:
            lines.append(
                f"  batch-invariant: bits follow from a row's own sequence and "
                f"{self.config.numeric_class}"
            )
        if self.cut:
            lines.append(f"  {self.cut}")
        lines += [f"  not {item.what}: {item.reason}" for item in self.rejected]
        return "\n".join(lines)


def choose(
    problem: AttentionProblem,
    arch: str,
    *,
    gpu: str = "",
    given: KernelConfig | None = None,
    measurements: Sequence[MeasuredTable] | None = None,
    unusable: Mapping[KernelConfig, str] = _NOTHING,
) -> Choice:
    """The configuration for `problem` on `arch`: given, measured, or by the rule that always fits.

    `gpu` is the name by which measurements are looked up; `unusable` are configurations that
    something beside problem and architecture rules out, with the reason. A given configuration is
    used or refused, never replaced.
    """
    if not isinstance(problem, AttentionProblem):
        raise ArgumentTypeError(f"problem is {problem!r}; it must be an AttentionProblem.")
    question = _Question(problem, get_arch(arch), gpu, unusable, _alone(problem))
    if given is not None:
        require_computable(given, problem)
        given.require_buildable(question.arch)
        return Choice(given, "given", "given by the caller")
    passed: list[Rejected] = []
    for table in known_measurements(gpu) if measurements is None else measurements:
        choice = _measured_choice(question, table, passed)
        if choice is not None:
            return _with_class(question, choice)
    return _with_class(question, _ruled_choice(question, passed))


def _alone(problem: AttentionProblem) -> AttentionProblem:
    """The problem that a choice looks at: where bits must not depend on the batch, one without it.

    How long packed sequences are is not known here, so they are taken for long ones; on pages, for
    one token each.
    """
    if not problem.is_batch_invariant:
        return problem
    if problem.sequences and problem.page:
        return replace(problem, sequences=0, q_len=1)
    if problem.sequences:
        return replace(problem, sequences=0, q_len=PACKED_LENGTH, k_len=PACKED_LENGTH)
    return replace(problem, batch=1)


def _with_class(question: _Question, choice: Choice) -> Choice:
    if not question.problem.is_batch_invariant:
        return choice
    return replace(choice, reason=f"{choice.reason}; the same bits whatever shares the batch")


def shipped_winners(problem: AttentionProblem, arch: str, gpu: str) -> list[KernelConfig]:
    """What the shipped measurements would choose for a problem, and the runners-up."""
    question = _Question(problem, get_arch(arch), gpu, _NOTHING, _alone(problem))
    table = shipped_table(gpu)
    choice = _measured_choice(question, table, [])
    near = _nearest(question, table)[1]
    found = [config for config, _ in (_usable(question, item) for item in near) if config]
    return [*([choice.config] if choice and choice.config else []), *found]


class _Question(NamedTuple):
    """What a configuration is wanted for."""

    problem: AttentionProblem
    arch: Arch
    gpu: str
    unusable: Mapping[KernelConfig, str]
    like: AttentionProblem  # whose shape is looked up

    def obstacle(self, config: KernelConfig) -> str:
        """Why `config` cannot be the answer, or an empty text."""
        if config in self.unusable:
            return self.unusable[config]
        if self.problem.deterministic and not config.repeats_bits:
            return "it has other bits in every run; only deterministic=False allows that"
        try:
            require_computable(config, self.problem)
            config.require_buildable(self.arch)
        except FlashsmithError as error:
            return str(error).removeprefix(f"{config.short_form()}: ").rstrip(".")
        return ""


def _measured_choice(
    question: _Question, table: MeasuredTable, passed: list[Rejected]
) -> Choice | None:
    """The fastest configuration of the nearest measured problem, or None."""
    least, ranked = _nearest(question, table)
    unknown = _unknown_winner(question, table, ranked)
    if unknown is not None:
        passed.append(
            Rejected(ranked[0].config, f"{table.label}, but it was not timed beside {unknown}")
        )
        return None
    for index, item in enumerate(ranked):
        config, obstacle = _usable(question, item)
        if config is None:
            passed.append(Rejected(item.config, obstacle))
            continue
        slower = tuple(
            Rejected(other.config, f"{other.median_us:.1f} µs against {item.median_us:.1f}")
            for other in ranked[index + 1 :]
        )
        where = "this shape"
        if least > 0:
            where = f"the nearest shape measured, {problem_text(item.problem)}"
            better = _better_filled(question, table, (config, item))
            if better is not None:
                return replace(better, rejected=(*passed, *better.rejected, *slower))
        reason = f"{table.label}: {item.median_us:.1f} µs on {where}, {question.gpu}"
        return Choice(config, table.label, reason, (*passed, *slower))
    return None


def _nearest(question: _Question, table: MeasuredTable) -> tuple[float, list[MeasuredConfig]]:
    """How far the nearest measured problem is, and what was measured there, the fastest first."""
    near = [(distance(question.like, m.problem), m) for m in table.of_gpu(question.gpu)]
    least = min((d for d, _ in near), default=math.inf)
    found = [m for d, m in near if d == least < math.inf]
    return least, sorted(found, key=lambda item: item.median_us)


def _unknown_winner(
    question: _Question, table: MeasuredTable, ranked: Sequence[MeasuredConfig]
) -> str | None:
    """The winner that a table must have timed to be believed, if it has not; else None."""
    if table.must_know is None or not ranked:
        return None
    rival = _measured_choice(question, table.must_know, [])
    if rival is None or rival.config is None:
        return None
    for text in table.timed(question.gpu, ranked[0].problem):
        config, _ = _usable(question, replace(ranked[0], config=text))
        if config == rival.config:
            return None
    return f"the winner of the {table.must_know.label}s; `flashsmith tune` races both"


def _better_filled(
    question: _Question,
    table: MeasuredTable,
    winner: tuple[KernelConfig, MeasuredConfig],
) -> Choice | None:
    """What should be faster here than a neighbour's winner, whose tiles or waves fit less well."""
    config, item = winner
    expected_us = _expected_us(question, config, item)
    best: tuple[float, KernelConfig, MeasuredConfig] | None = None
    for other in table.of_gpu(question.gpu):
        if other.config == item.config or not states_a_floor(question.like, other.problem):
            continue
        rival, _ = _usable(question, other)
        if rival is None:
            continue
        rival_us = _expected_us(question, rival, other)
        if rival_us < (best[0] if best else (1 - MARGIN) * expected_us):
            best = (rival_us, rival, other)
    if best is None:
        return None
    rival_us, rival, other = best
    reason = (
        f"{table.label}: {other.median_us:.1f} µs on {problem_text(other.problem)}, "
        f"{question.gpu}; with whole tiles and waves, {rival_us:.1f} µs expected here"
    )
    loser = (
        f"{item.median_us:.1f} µs on the nearest shape measured, {problem_text(item.problem)}; "
        f"with whole tiles and waves, {expected_us:.1f} µs expected here"
    )
    return Choice(rival, table.label, reason, (Rejected(item.config, loser),))


def _expected_us(question: _Question, config: KernelConfig, item: MeasuredConfig) -> float:
    """The time on the question's problem if a launched element costs what it did when measured."""
    here = launched_area(config, question.like, item.blocks_at_once)
    measured = replace(item.problem, dtype=question.like.dtype)
    there = launched_area(config, measured, item.blocks_at_once)
    return item.median_us * here / max(there, 1)


def _usable(question: _Question, item: MeasuredConfig) -> tuple[KernelConfig | None, str]:
    """The measured configuration in the problem's element type, or why it is none."""
    try:
        config = parse_config(item.config)
    except ConfigError as error:
        return None, str(error)
    fields: dict[str, KnobValue] = {"dtype": question.problem.dtype}
    config = replace(config, **fields)
    obstacle = question.obstacle(config)
    # What was measured with lengths in memory, or in spite of its drawback, has proved itself.
    if not obstacle and not item.problem.is_listed and not config.drawback(item.problem):
        obstacle = config.drawback(question.problem)
    return (config, "") if not obstacle else (None, obstacle)


def _candidates(question: _Question, family: type[KernelConfig]) -> Sequence[KernelConfig]:
    """Those of the shape that is looked at; the batch decides between such that give equal bits."""
    alone = family.candidates(question.like, question.arch)
    classes = [config.numeric_class for config in alone]
    if question.like is question.problem or not alone or not all(classes):
        return alone
    together = family.candidates(question.problem, question.arch)
    return sorted(together, key=lambda config: classes.index(config.numeric_class))


def _ruled_choice(question: _Question, passed: list[Rejected]) -> Choice:
    """The first candidate that fits; the families of newer GPUs are asked first.

    And those last that say so themselves, as kernels for few rows do of many.
    """
    chosen: KernelConfig | None = None
    last: Rejected | None = None  # of configurations: it says more than that a family has none
    newest_first = reversed(CATALOGUE.of(question.problem.operation))
    for family in sorted(newest_first, key=lambda family: family.is_last_resort(question.like)):
        if not family.runs_on(question.arch.name):
            reason = f"no kernels for {question.arch.name}"
            passed.append(Rejected(f"{family.NAME}", reason))
            continue
        ranked = sorted(
            _candidates(question, family),
            key=lambda config: config.drawback(question.problem) != "",
        )
        for config in ranked:
            obstacle = question.obstacle(config)
            if not obstacle and chosen is None:
                chosen = config
            else:
                drawback = config.drawback(question.problem)
                reason = obstacle or drawback or "the rule ranks it lower here"
                passed.append(Rejected(config.short_form(), reason))
                last = passed[-1]
    if chosen is None:
        last = last or (passed[-1] if passed else None)
        smallest = f"{last.what}: {last.reason}; " if last else ""
        raise Unsupported(
            f"No configuration computes {problem_text(question.problem)} on {question.arch.name}; "
            f"{smallest}the kernels take d_head in multiples of {D_HEAD_STEP} up to {MAX_D_HEAD}."
        )
    reason = "nothing was measured near this shape; the rule's first configuration that fits"
    return Choice(chosen, "rule", reason, tuple(passed))
