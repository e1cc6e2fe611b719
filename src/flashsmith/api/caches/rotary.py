"""Rotates new rows of queries and keys by where they stand in a cache, as flash-attn does."""

from __future__ import annotations

from typing import Any

import numpy as np

from flashsmith.api.arrays import origin
from flashsmith.api.arrays.library import Array
from flashsmith.base.errors import ArgumentError, ArgumentTypeError

_STEP = 16  # columns that are rotated are a multiple of this, as in flash-attn


def rotation(q: Array, cos: Array, sin: Array, capacity: int) -> tuple[Array, Array]:
    """Both tables, checked: a row for each of `capacity` positions, a column for each pair."""
    given = {"rotary_cos": cos, "rotary_sin": sin}
    for name, table in given.items():
        if table is None:
            missing, other = name, next(n for n in given if n != name)
            raise ArgumentError(f"{other} is given and {missing} is not; pass both.")
        if origin(table) != origin(q):
            raise ArgumentTypeError(
                f"q is of {origin(q)} and {name} of type {type(table).__name__}; pass both of one "
                f"library."
            )
        if table.dtype != q.dtype or getattr(table, "device", "") != getattr(q, "device", ""):
            raise ArgumentTypeError(
                f"{name} is {table.dtype} and q {q.dtype}; both must have one type and device."
            )
        shape = tuple(table.shape)
        width = 2 * shape[-1] if len(shape) == 2 else 0
        if not width or width % _STEP or width > q.shape[-1] or shape[0] < capacity:
            raise ArgumentError(
                f"{name} has shape {shape}; it must be (positions, half of the rotated columns): "
                f"at least {capacity} positions, as many as a sequence of the cache has room for, "
                f"and a multiple of {_STEP} columns, at most {q.shape[-1]}."
            )
    if tuple(cos.shape) != tuple(sin.shape):
        raise ArgumentError(
            f"rotary_cos has shape {tuple(cos.shape)} and rotary_sin {tuple(sin.shape)}; they must "
            f"be equal."
        )
    return cos, sin


def require_appended(cos: Array, sin: Array) -> None:
    """Raises where tables are given and no rows are appended."""
    if cos is not None or sin is not None:
        raise ArgumentError(
            f"{'rotary_sin' if cos is None else 'rotary_cos'} is given and k and v are not; rows "
            f"are rotated where new ones are appended; pass k and v, or rotate q before the call."
        )


def rotated(
    module: Any,  # Any: torch or numpy, whose arrays these are
    x: Array,
    *,
    tables: tuple[Array, Array],
    at: Array,
    interleaved: bool,
) -> Array:
    """Rows (batch, rows, heads, d_head) turned by the tables' rows `at`, (batch, rows) integers.

    Pairs are neighbouring columns where they are interleaved, otherwise a column of the first half
    and one of the second. Products are float32; the sum is rounded once.
    """
    half = tables[0].shape[1]
    cos, sin = (_wide(table)[at][:, :, None, :] for table in tables)
    turned, rest = _wide(x[..., : 2 * half]), x[..., 2 * half :]
    if interleaved:
        a, b = turned[..., 0::2], turned[..., 1::2]
    else:
        a, b = turned[..., :half], turned[..., half:]
    pair = (a * cos - b * sin, a * sin + b * cos)
    if interleaved:
        both = module.stack(pair, -1).reshape(*x.shape[:-1], 2 * half)
    else:
        both = module.concatenate(pair, -1)
    narrow = both.to(x.dtype) if origin(x) == "torch" else both.astype(x.dtype)
    return module.concatenate((narrow, rest), -1)


def _wide(x: Array) -> Any:  # Any: of two libraries
    return x.float() if origin(x) == "torch" else x.astype(np.float32)
