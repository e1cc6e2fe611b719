"""How large scores may be: kernels are right up to a size, which a call can be held to."""

from __future__ import annotations

import math

from flashsmith.api.arrays.library import Array
from flashsmith.api.options import CallOptions
from flashsmith.base.errors import ArgumentError, Unsupported

# Kernels take 2^(s·c - m·c) with m·c rounded to float32, m being the row's largest score and c
# scale·log2(e). What the rounding adds is the same for a whole row and divides out, until it
# overflows: beyond 2^28 (1.9e8 in natural units) P no longer fits FP16, beyond 2^31 BF16.
MOST = 1e8


def require_small_scores(q: Array, k: Array, options: CallOptions) -> None:
    """Raises where a score of this call may be larger than kernels are right for.

    By the longest rows of q and k, in float32: one pass over each, and the arrays are awaited.
    """
    scale = options.fact("scale")
    if scale is None:
        scale = 1.0 / math.sqrt(max(q.shape[-1], 1))
    reach = _longest_row("q", q) * _longest_row("k", k) * scale
    if reach > MOST:
        raise ArgumentError(
            f"scores may reach {reach:.2g} (scale {scale:.2g} times the longest rows of q and k); "
            f"kernels are right up to {MOST:.0e}; scale q down."
        )


def _longest_row(name: str, array: Array) -> float:
    if 0 in array.shape:
        return 0.0
    if hasattr(array, "detach"):  # torch
        numbers = array.detach().float()
    elif hasattr(array, "astype"):
        numbers = array.astype("float32")
    else:
        raise Unsupported(
            f"FLASHSMITH_CHECK cannot look into {name}, a {type(array).__name__}; unset it."
        )
    return math.sqrt(float((numbers * numbers).sum(-1).max()))
