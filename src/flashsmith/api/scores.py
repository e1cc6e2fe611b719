"""How large scores may be: kernels are right up to a size, which a call can be held to."""

from __future__ import annotations

import math

from flashsmith.api.arrays.library import Array
from flashsmith.api.options import CallOptions
from flashsmith.api.tables import NO_TABLES, ArrayTables
from flashsmith.base.errors import ArgumentError, Unsupported
from flashsmith.problem.reference import LEAST_SCORE
from flashsmith.problem.signature import BIAS

# Kernels take 2^(s·c - m·c) with m·c rounded to float32, m being the row's largest score and c
# scale·log2(e). What the rounding adds is the same for a whole row and divides out, until it
# overflows: beyond 2^28 (1.9e8 in natural units) P no longer fits FP16, beyond 2^31 BF16.
MOST = 1e8


def require_small_scores(
    q: Array, k: Array, options: CallOptions, tables: ArrayTables = NO_TABLES
) -> None:
    """Raises where a score of this call may be larger than kernels are right for.

    By the longest rows of q and k, in float32: one pass over each, and the arrays are awaited.
    What is added to scores counts by its largest number in each row of scores: a row of which all
    keys are so far down is as wrong as one of large scores. Below `LEAST_SCORE` keys are hidden.
    """
    _require_small_additions(tables)
    scale = options.fact("scale")
    if scale is None:
        scale = 1.0 / math.sqrt(max(q.shape[-1], 1))
    reach = _longest_row("q", q) * _longest_row("k", k) * scale
    if reach > MOST:
        raise ArgumentError(
            f"scores may reach {reach:.2g} (scale {scale:.2g} times the longest rows of q and k); "
            f"kernels are right up to {MOST:.0e}; scale q down."
        )


def _require_small_additions(tables: ArrayTables) -> None:
    for name in (BIAS, "alibi_slopes"):
        if 0 in getattr(tables.get(name), "shape", (0,)):
            continue
        of_rows = _numbers(name, tables[name])
        if name == BIAS and of_rows.shape:
            found = of_rows.max(-1)
            of_rows = found[0] if isinstance(found, tuple) else found  # torch adds the places
        is_bad = (of_rows > MOST) | ((of_rows < -MOST) & (of_rows > LEAST_SCORE))
        if bool(is_bad.any()):
            worst = float(abs(of_rows[is_bad]).max())
            raise ArgumentError(
                f"{name} puts a row of scores at {worst:.2g}; kernels are right up to {MOST:.0e}; "
                f"give smaller numbers, and -inf for a key that is to be hidden."
            )


def _longest_row(name: str, array: Array) -> float:
    if 0 in array.shape:
        return 0.0
    numbers = _numbers(name, array)
    return math.sqrt(float((numbers * numbers).sum(-1).max()))


def _numbers(name: str, array: Array) -> Array:
    """The array in float32."""
    if hasattr(array, "detach"):  # torch
        return array.detach().float()
    if hasattr(array, "astype"):
        return array.astype("float32")
    raise Unsupported(
        f"FLASHSMITH_CHECK cannot look into {name}, a {type(array).__name__}; unset it."
    )
