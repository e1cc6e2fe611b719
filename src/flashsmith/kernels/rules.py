"""Named rules about configurations: each can say why it refuses one, and what to do instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

FamilyConfig = Any  # Any: a rule belongs to one family and reads its fields


class Refusal(NamedTuple):
    """Which rule refuses a configuration, why, and what to change."""

    rule: str
    reason: str
    advice: str

    def __str__(self) -> str:
        return f"{self.reason}; {self.advice}"


class Rule(NamedTuple):
    """A predicate with a name; `reason` and `advice` are the second and third part of a message."""

    name: str
    refuses: Callable[[FamilyConfig], bool]
    reason: str
    advice: str

    def refusal(self) -> Refusal:
        """What the rule says of a configuration that it refuses."""
        return Refusal(self.name, self.reason, self.advice)


def first_refusal(rules: tuple[Rule, ...], config: object) -> Refusal | None:
    """The refusal of the first rule, in the order given, that refuses `config`."""
    return next((rule.refusal() for rule in rules if rule.refuses(config)), None)
