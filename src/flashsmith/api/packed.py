"""Packed sequences in a call: arrays of three dimensions, and boundaries held to the arrays."""

from __future__ import annotations

from itertools import pairwise

from flashsmith.api.arrays.library import Array, ArrayOrTuple
from flashsmith.api.options import CallOptions
from flashsmith.api.tables import BOUNDARIES, ArrayTables
from flashsmith.base.errors import ArgumentError


def is_packed(tables: ArrayTables) -> bool:
    """Whether a call is of packed sequences."""
    return any(name in tables for name in BOUNDARIES)


def without_batch(found: ArrayOrTuple, *, has_lse: bool) -> ArrayOrTuple:
    """The results of a batch of one, of arrays that had no such dimension: (rows, heads, d_head).

    The log-sum-exp is (heads, rows) then.
    """
    if not isinstance(found, tuple):
        return found[0]
    results = [found[0][0], *found[1:]]
    if has_lse:
        results[1] = results[1][0]
    return tuple(results)


def require_boundaries(tables: ArrayTables, q: Array, k: Array, options: CallOptions) -> None:
    """Raises, with the index, where a boundary lies outside its array or before another.

    The tables are awaited and read: only calls that FLASHSMITH_CHECK asks to hold pass here.
    Without it kernels clamp boundaries into the array.
    """
    for name, array in zip(BOUNDARIES, (q, k), strict=True):
        if name not in tables:
            continue
        rows = array.shape[-2 if options.fact("layout") == "bhsd" else -3]
        numbers = [int(number) for number in tables[name].tolist()]
        for index, number in enumerate(numbers):
            if not 0 <= number <= rows:
                raise ArgumentError(
                    f"{name}[{index}] is {number} and {name[-1]} has {rows} rows; boundaries must "
                    f"be from 0 to that."
                )
        for index, (before, number) in enumerate(pairwise(numbers), start=1):
            if number < before:
                raise ArgumentError(
                    f"{name}[{index}] is {number} and {name}[{index - 1}] is {before}; boundaries "
                    f"must not fall."
                )
