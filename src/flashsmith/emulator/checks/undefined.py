"""Registers whose values mean nothing: products of shared memory that nothing has written.

Such a product is allowed as long as nobody uses it. Its registers are arrays that say which lanes
are undefined; computing with them spreads that, and what leaves a thread by them is a fault:
stores to global memory, sums, addresses, branches. A store to shared memory leaves its place
as unwritten as it was. Registers that are well defined are plain arrays and cost nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from flashsmith.emulator.machine.values import NumpyArgument, Value

if TYPE_CHECKING:
    from flashsmith.emulator.machine.chunk import Chunk
    from flashsmith.emulator.machine.unit import Unit

_Function = TypeVar("_Function", bound=Callable[..., Value])
MESSAGE = "uses a product of shared memory that nothing has written"


class Undefined(np.ndarray[Any, Any]):
    """Values of lanes, some of which are undefined."""

    undefined: NDArray[np.bool_] | None = None  # of the array's shape

    def _with(self, result: Value, mask: NDArray[np.bool_] | None) -> Value:
        """The result as it is, with its own mask; plain when all of it is defined."""
        if mask is None or not isinstance(result, np.ndarray) or not mask.any():
            return np.asarray(result) if isinstance(result, np.ndarray) else result
        return marked(result, np.broadcast_to(mask, result.shape))

    def __getitem__(self, key: NumpyArgument) -> Value:
        mask = None if self.undefined is None else self.undefined[key]
        return self._with(np.asarray(self)[key], mask)

    def reshape(self, *shape: NumpyArgument, **options: NumpyArgument) -> Value:
        mask = None if self.undefined is None else self.undefined.reshape(*shape)
        return self._with(np.asarray(self).reshape(*shape, **options), mask)

    def astype(self, dtype: NumpyArgument, **options: NumpyArgument) -> Value:  # type: ignore[override]
        return self._with(np.asarray(self).astype(dtype, **options), self.undefined)

    def view(self, dtype: NumpyArgument = None, **options: NumpyArgument) -> Value:  # type: ignore[override]
        plain = np.asarray(self)
        result = plain.view(dtype, **options) if dtype is not None else plain
        mask = self.undefined
        if mask is not None and result.shape != plain.shape:
            wide = result.shape[-1] / plain.shape[-1]
            if wide > 1:
                mask = np.repeat(mask, int(wide), axis=-1)
            else:
                mask = np.asarray(mask.reshape(*result.shape, -1).any(axis=-1))
        return self._with(result, mask)

    def __array_ufunc__(
        self, ufunc: np.ufunc, method: str, *inputs: Value, **options: NumpyArgument
    ) -> Value:
        plain = [np.asarray(x) if isinstance(x, Undefined) else x for x in inputs]
        result = getattr(ufunc, method)(*plain, **options)
        if method != "__call__" or "out" in options or isinstance(result, tuple):
            return result
        masks = [x.undefined for x in inputs if isinstance(x, Undefined)]
        met = np.zeros(np.shape(result), np.bool_)
        for mask in masks:
            if mask is not None:
                met = met | mask
        return self._with(result, met)

    def __array_function__(
        self, function: NumpyArgument, types: NumpyArgument, given: Value, options: NumpyArgument
    ) -> Value:
        plain = tuple(np.asarray(x) if isinstance(x, Undefined) else x for x in given)
        result = function(*plain, **options)
        if function is not np.where or len(given) != 3:
            return result
        condition, *picked = given
        masks = [
            x.undefined if isinstance(x, Undefined) else np.zeros((), np.bool_) for x in picked
        ]
        met = np.where(np.asarray(condition), *masks)
        if isinstance(condition, Undefined):
            met = met | condition.undefined
        return self._with(result, met)


_MAY_SPREAD = frozenset({Undefined, tuple})  # arguments that are, or may hold one that is


def marked(values: NDArray[Any], undefined: NDArray[np.bool_]) -> NDArray[Any]:
    """The values, of which some lanes are undefined; the same array when none are."""
    if not undefined.any():
        return values
    out = np.asarray(values).view(Undefined)
    assert isinstance(out, Undefined)
    out.undefined = undefined
    return out


def spreads(function: _Function) -> _Function:
    """The same function of lanes; undefined where an argument is, whatever numpy does with it."""
    return _marking(function, lambda mask: mask)


def spreads_in_warp(function: _Function) -> _Function:
    """As `spreads`, of lanes that exchange: one that is undefined spoils those of its warp."""
    return _marking(function, lambda mask: np.repeat(mask.reshape(-1, 32).any(axis=1), 32))


def _marking(
    function: _Function, spread: Callable[[NDArray[np.bool_]], NDArray[np.bool_]]
) -> _Function:
    @wraps(function)
    def apply(*given: Value) -> Value:
        out = function(*given)
        if _MAY_SPREAD.isdisjoint(map(type, given)):
            return out
        undefined = [x for x in _flat(given) if isinstance(x, Undefined)]
        if not undefined:
            return out
        mask = spread(any_undefined(tuple(undefined), undefined[0].shape[-1]))
        parts = out if isinstance(out, tuple) else (out,)
        spoilt = tuple(
            marked(x, np.broadcast_to(mask, x.shape)) if np.ndim(x) else x for x in parts
        )
        return spoilt if isinstance(out, tuple) else spoilt[0]

    return apply  # type: ignore[return-value]


def _flat(given: tuple[Value, ...]) -> Iterator[Value]:
    for x in given:
        if isinstance(x, tuple):
            yield from x
        else:
            yield x


def undefined_lanes(value: Value, m: Value) -> NDArray[np.bool_] | None:
    """Which active lanes of a register are undefined, or None when none are."""
    if not isinstance(value, Undefined) or value.undefined is None:
        return None
    lanes: NDArray[np.bool_] = value.undefined if m is None else value.undefined & m
    return lanes if lanes.any() else None


def require_defined_value(c: Chunk, u: Unit, m: Value, value: Value, index: int) -> None:
    """Faults when an active lane uses an undefined value."""
    lanes = undefined_lanes(value, m)
    if lanes is not None:
        c.fault("uninitialised", MESSAGE, index, u, lane=int(lanes.argmax()))


def merged_mask(
    values: list[Value],
    active: list[NDArray[np.bool_] | None],
    places: list[NDArray[np.intp]],
    total: int,
) -> NDArray[np.bool_] | None:
    """Which lanes of a merged register are undefined; `places` are the lanes of each part."""
    if not any(isinstance(value, Undefined) for value in values):
        return None
    mask = np.zeros(total, np.bool_)
    for value, lanes, place in zip(values, active, places, strict=True):
        undefined = undefined_lanes(value, lanes)
        if undefined is not None:
            mask[place] |= undefined
    return mask


def any_undefined(values: tuple[Value, ...], lanes: int) -> NDArray[np.bool_]:
    """The lanes in which one of several registers is undefined."""
    mask = np.zeros(lanes, np.bool_)
    for value in values:
        if isinstance(value, Undefined) and value.undefined is not None:
            mask |= value.undefined
    return mask
