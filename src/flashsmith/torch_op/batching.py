"""torch.vmap over the operators: the mapped dimension joins the batch, and one launch serves all.

Calls with tables go through one by one: where sequences begin is told for a batch, not for many.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from flashsmith.base.loose_types import Foreign

# What an operator takes, and where its mapped dimension is: None where there is none. A list has
# a list.
Value = Foreign
Rule = Callable[..., tuple[Value, Value]]


class Info(NamedTuple):
    """Of torch: how many calls are mapped, and how random numbers differ, which none of ours do."""

    batch_size: int
    randomness: str


def folded(call: Callable[..., Value]) -> Rule:
    """The rule of an operator whose tensors all have the batch first."""

    def rule(info: Info, in_dims: tuple[Value, ...], *args: Value) -> tuple[Value, Value]:
        found = call(*(_fold(x, at, info.batch_size) for x, at in zip(args, in_dims, strict=True)))
        apart = [x.unflatten(0, (info.batch_size, -1)) for x in _listed(found)]
        return _as_given(found, apart), _as_given(found, [0] * len(apart))

    return rule


def one_by_one(call: Callable[..., Value]) -> Rule:
    """The rule of an operator that is called as often as there are entries."""

    def rule(info: Info, in_dims: tuple[Value, ...], *args: Value) -> tuple[Value, Value]:
        calls = [
            call(*(_entry(x, at, number) for x, at in zip(args, in_dims, strict=True)))
            for number in range(info.batch_size)
        ]
        stacked = [torch.stack(of) for of in zip(*map(_listed, calls), strict=True)]
        return _as_given(calls[0], stacked), _as_given(calls[0], [0] * len(stacked))

    return rule


def _fold(value: Value, at: Value, calls: int) -> Value:
    if not isinstance(value, Tensor):
        return value
    whole = value.expand(calls, *value.shape) if at is None else value.movedim(at, 0)
    return whole.flatten(0, 1)


def _entry(value: Value, at: Value, number: int) -> Value:
    if isinstance(value, (list, tuple)):
        places = at if isinstance(at, (list, tuple)) else [at] * len(value)
        return [_entry(x, place, number) for x, place in zip(value, places, strict=True)]
    return value.select(at, number) if isinstance(value, Tensor) and at is not None else value


def _listed(found: Value) -> list[Tensor]:
    return [found] if isinstance(found, Tensor) else list(found)


def _as_given(found: Value, values: list[Value]) -> Value:
    return values[0] if isinstance(found, Tensor) else tuple(values)
