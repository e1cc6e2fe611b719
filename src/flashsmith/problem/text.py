"""The one text of a problem: as flat data and back, and as a line for people."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from flashsmith.base.errors import ArgumentError, DamagedFile
from flashsmith.base.fields import MOST
from flashsmith.base.loose_types import FactValue, Json, JsonObject
from flashsmith.problem.attention import FACTS, AttentionProblem

Flat = JsonObject

_ABSENT = {name: what.absent for name, what in FACTS.items() if what.is_optional}
# In the text elsewhere, or without a say in what is computed and how long it takes.
_NOT_NAMED = ("causal", "diagonal", "scale", "layout", "lse", "operation", "dlse")
_NEEDED = [name for name in FACTS if name not in _ABSENT]


def problem_fields(problem: AttentionProblem) -> Flat:
    """A problem as flat data, members of an Enum by name.

    A fact that a later version adds has an absent value: texts of older versions stay the same.
    """
    found = {name: getattr(problem, name) for name in FACTS}
    kept = without_absent(found)
    return {name: v.name if isinstance(v, Enum) else v for name, v in kept.items()}


def without_absent(data: Mapping[str, Json]) -> Flat:
    """Flat data less the facts of a problem that have their absent value."""
    return {n: v for n, v in data.items() if n not in _ABSENT or v != _ABSENT[n]}


def problem_from_fields(data: object) -> AttentionProblem:
    """The problem that `problem_fields` wrote, checked; one that can be measured is not empty."""
    if not isinstance(data, dict) or not set(_NEEDED) <= set(data) <= set(FACTS):
        raise DamagedFile(
            f"problem is {str(data)[:200]!r}; its fields are {', '.join(_NEEDED)} and perhaps "
            f"{', '.join(_ABSENT)}."
        )
    values = {name: _member(name, value) for name, value in data.items()}
    for name, value in values.items():
        is_number = isinstance(value, int) and not isinstance(value, bool | Enum)
        is_size = is_number and name in _NEEDED
        if is_number and not (1 if is_size else -MOST) <= value <= MOST:
            raise DamagedFile(
                f"{name} of the problem is {str(value)[:40]}; it must be from "
                f"{1 if is_size else -MOST} to {MOST:,}."
            )
    try:
        return AttentionProblem(**values)
    except ArgumentError as error:
        raise DamagedFile(f"in the problem: {error}") from error


def _member(name: str, value: object) -> FactValue:
    kind = FACTS[name].kind
    if not issubclass(kind, Enum):
        return value
    found = kind.__members__.get(str(value))
    if found is None:
        names = " or ".join(kind.__members__)
        raise DamagedFile(f"{name} is {str(value)[:40]!r}; it must be {names}.")
    return found


def problem_text(problem: AttentionProblem) -> str:
    """A problem in one line, as tables, charts and messages name it."""
    p = problem
    heads = f"{p.heads}" if p.heads == p.kv_heads else f"{p.heads}:{p.kv_heads}"
    lengths = f"{p.q_len}" if p.q_len == p.k_len else f"{p.q_len} x {p.k_len}"
    operation = [] if p.operation == _ABSENT["operation"] else [p.operation]
    return ", ".join(
        [
            *operation,
            f"batch {p.batch}",
            f"heads {heads}",
            f"length {lengths}",
            f"d {p.d_head}",
            mask_text(p),
            *_other_facts(p),
            p.dtype.name,
        ]
    )


def _other_facts(problem: AttentionProblem) -> list[str]:
    """What the problem has beside shape and mask, by the names of the facts."""
    found = {name: getattr(problem, name) for name in _ABSENT if name not in _NOT_NAMED}
    return [
        name if value is True else f"{name} {value}"
        for name, value in found.items()
        if value != _ABSENT[name]
    ]


def mask_text(problem: AttentionProblem) -> str:
    """The mask as tables name it."""
    if not problem.causal:
        return "full"
    return "causal" if problem.diagonal is None else f"causal{problem.diagonal:+d}"
