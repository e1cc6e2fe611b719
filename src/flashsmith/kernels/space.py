"""How large the space is, before and after each rule."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from flashsmith.kernels.catalogue import CATALOGUE
from flashsmith.kernels.kernel import KernelConfig
from flashsmith.kernels.rules import Rule, first_refusal

MOST_TO_WALK = 1_000_000  # a larger space is sampled: one of 10^9 points would take hours
SAMPLES = 50_000


@dataclass(frozen=True, slots=True)
class SpaceStep:
    """One line of the way from every combination to what is left."""

    family: str
    step: str  # what was laid out, or the rule
    refused: int
    left: int
    how: str  # "counted", or "sampled": an estimate from `SAMPLES` random points


def space_size(family: type[KernelConfig]) -> int:
    """How many combinations of legal values a family has."""
    return math.prod(len(what.values) for what in family.knobs().values())


def every_config(family: type[KernelConfig]) -> Iterator[KernelConfig]:
    """Every combination of legal values of a family."""
    choices = (what.values for what in family.knobs().values())
    return (_unchecked(family, values) for values in itertools.product(*choices))


def random_configs(family: type[KernelConfig], count: int, seed: int = 0) -> Iterator[KernelConfig]:
    """Random combinations of legal values, the same for the same seed."""
    draw = random.Random(seed)
    # Knob by knob: drawing one value at a time takes longer than all that is asked of them.
    columns = [draw.choices(what.values, k=count) for what in family.knobs().values()]
    return (_unchecked(family, values) for values in zip(*columns, strict=True))


def whole_space_steps() -> list[SpaceStep]:
    """From all combinations of legal values to those that can be built, for every family."""
    return [step for family in CATALOGUE for step in _build_steps(family)]


def autotuning_steps() -> list[SpaceStep]:
    """From every family's tuning grid to what is worth measuring."""
    steps = []
    for family in CATALOGUE:
        grid = family.autotuning_grid()
        if grid:
            refused = _refusals(grid, family.AUTOTUNE_RULES)
            steps += _steps(family, "tuning grid", family.AUTOTUNE_RULES, refused, len(grid))
    return steps


def _build_steps(family: type[KernelConfig]) -> list[SpaceStep]:
    rules, total = family.BUILD_RULES, space_size(family)
    if total <= MOST_TO_WALK:
        return _steps(family, "legal values", rules, counted_refusals(family, rules), total)
    sampled = _refusals(random_configs(family, SAMPLES), rules)
    scaled = Counter({name: round(total * n / SAMPLES) for name, n in sampled.items()})
    return _steps(family, "legal values", rules, scaled, total, how="sampled")


def counted_refusals(family: type[KernelConfig], rules: tuple[Rule, ...]) -> Counter[str]:
    """As `_refusals` of every combination; knobs that no rule looks at are not walked."""
    knobs, refused = family.knobs(), Counter[str]()

    def walk(decided: dict[str, object], points: int) -> None:
        config = _with_values(family, decided)
        try:
            refusal = first_refusal(rules, config)
        except AttributeError as undecided:  # the first knob that is looked at and has no value
            if undecided.obj is not config or undecided.name not in knobs.keys() - decided:
                raise
            values = knobs[undecided.name].values
            for value in values:
                walk({**decided, undecided.name: value}, points // len(values))
        else:
            if refusal is not None:
                refused[refusal.rule] += points

    walk({}, space_size(family))
    return refused


def _refusals(configs: Iterable[KernelConfig], rules: tuple[Rule, ...]) -> Counter[str]:
    """How many configurations each rule is the first to refuse."""
    refusals = (first_refusal(rules, config) for config in configs)
    return Counter(refusal.rule for refusal in refusals if refusal is not None)


def _steps(
    family: type[KernelConfig],
    start: str,
    rules: tuple[Rule, ...],
    refused: Counter[str],
    total: int,
    how: str = "counted",
) -> list[SpaceStep]:
    left = total
    steps = [SpaceStep(family.NAME, start, 0, left, "counted")]
    for rule in rules:
        left -= refused[rule.name]
        steps.append(SpaceStep(family.NAME, rule.name, refused[rule.name], left, how))
    return steps


# Any value is legal by construction: checking 400,000 points again takes seconds.
def _unchecked(family: type[KernelConfig], values: tuple[object, ...]) -> KernelConfig:
    return _with_values(family, dict(zip(family.knobs(), values, strict=True)))


def _with_values(family: type[KernelConfig], values: dict[str, object]) -> KernelConfig:
    """A configuration with these values; to look at another knob of it is an AttributeError."""
    config = object.__new__(family)
    for name, value in values.items():
        object.__setattr__(config, name, value)
    return config
