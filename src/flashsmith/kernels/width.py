"""Which head dimensions the kernels take, whatever their family."""

from __future__ import annotations

from flashsmith.base.errors import Unsupported
from flashsmith.kernels.catalogue import CATALOGUE

D_HEAD_STEP = 8  # elements of one 16-byte access
MAX_D_HEAD: int = max(width for family in CATALOGUE for width in family.knobs()["d_head"].values)


def require_width(d_head: int, advice: str) -> None:
    """Raises, with the advice, unless some kernel computes this head dimension."""
    if not 0 < d_head <= MAX_D_HEAD or d_head % D_HEAD_STEP:
        raise Unsupported(
            f"d_head is {d_head}; the kernels take multiples of {D_HEAD_STEP} up to {MAX_D_HEAD}; "
            f"{advice}."
        )
