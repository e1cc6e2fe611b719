"""How large the space is, before and after each rule."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from flashsmith.config.families import FAMILIES
from flashsmith.config.kernel_config import KernelConfig
from flashsmith.config.rules import Rule, first_refusal


@dataclass(frozen=True, slots=True)
class SpaceStep:
    """One line of the way from every combination to what is left."""

    family: str
    step: str  # what was laid out, or the rule
    refused: int
    left: int


def every_config(family: type[KernelConfig]) -> Iterator[KernelConfig]:
    """Every combination of legal values of a family."""
    names = list(family.knobs())
    for values in itertools.product(*(what.values for what in family.knobs().values())):
        # The values are legal by construction: checking 400,000 points again takes seconds.
        config = object.__new__(family)
        for name, value in zip(names, values, strict=True):
            object.__setattr__(config, name, value)
        yield config


def whole_space_steps() -> list[SpaceStep]:
    """From all combinations of legal values to those that can be built, for every family."""
    return [
        step
        for family in FAMILIES
        for step in _steps(family, "legal values", every_config(family), family.BUILD_RULES)
    ]


def autotuning_steps() -> list[SpaceStep]:
    """From every family's tuning grid to what is worth measuring."""
    return [
        step
        for family in FAMILIES
        for step in _steps(family, "tuning grid", family.autotuning_grid(), family.AUTOTUNE_RULES)
    ]


def _steps(
    family: type[KernelConfig], start: str, configs: Iterable[KernelConfig], rules: tuple[Rule, ...]
) -> list[SpaceStep]:
    refusals = (first_refusal(rules, config) for config in configs)
    refused = Counter(refusal.rule if refusal else "" for refusal in refusals)
    left = refused.total()
    steps = [SpaceStep(family.FAMILY, start, 0, left)]
    for rule in rules:
        left -= refused[rule.name]
        steps.append(SpaceStep(family.FAMILY, rule.name, refused[rule.name], left))
    return steps
