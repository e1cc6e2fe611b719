"""What each optimisation brings: a ladder of configurations, or one knob through its values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flashsmith.base.errors import ArgumentError
from flashsmith.base.fields import value_text
from flashsmith.kernels.kernel import KernelConfig
from flashsmith.measure.facts import Facts
from flashsmith.measure.interleaved import Comparison, Timed
from flashsmith.measure.statistics import Summary, ratio_by_round

LADDER = "progression"  # the suite of a ladder's records
KNOB = "knob "  # and, followed by the knob's name, of those that move one knob


@dataclass(frozen=True, slots=True)
class Step:
    """One rung: its facts, and its time and gain where there is a GPU."""

    config: KernelConfig
    adds: str  # what it changes against the rung before
    facts: Facts
    timed: Timed | None = None
    gain: Summary | None = None  # times as fast as what it is held against, by round


def steps_of(
    configs: Sequence[KernelConfig],
    facts: Sequence[Facts],
    comparison: Comparison | None,
    *,
    against_first: bool = False,
) -> list[Step]:
    """The rungs in order, each against the one before, or all against the first."""
    steps: list[Step] = []
    for number, (config, known) in enumerate(zip(configs, facts, strict=True)):
        timed = comparison.timed[number] if comparison else None
        before = (steps[0] if against_first else steps[-1]) if steps else None
        gain = None
        if timed and before and before.timed:
            gain = ratio_by_round(before.timed.times_us, timed.times_us)
        adds = changes(before.config, config) if before else "the start"
        steps.append(Step(config, adds, known, timed, gain))
    return steps


def changes(before: KernelConfig, after: KernelConfig) -> str:
    """The fields that differ, as `swizzled: True`."""
    return ", ".join(
        f"{name}: {value_text(getattr(after, name))}"
        for name in after.knobs()
        if getattr(before, name, None) != getattr(after, name)
    )


def ablation(config: KernelConfig, knob: str) -> list[KernelConfig]:
    """The configuration, and those that differ from it in one knob alone and can be built."""
    knobs = config.knobs()
    if knob not in knobs:
        raise ArgumentError(f"--knob is {knob!r}; it must be one of {', '.join(knobs)}.")
    others = [
        config.replace(**{knob: value})
        for value in knobs[knob].values
        if value != getattr(config, knob)
    ]
    found = [other for other in others if other.refusal() is None]
    if not found:
        raise ArgumentError(
            f"{config.short_form()}: no other value of {knob} fits its other knobs; "
            f"start from another configuration."
        )
    return [config, *found]
