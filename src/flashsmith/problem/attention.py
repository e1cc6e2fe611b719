"""One attention problem: shapes, mask, scale and layout, independent of any kernel."""

from __future__ import annotations

import math
from dataclasses import dataclass

from flashsmith.base.dtypes import DType
from flashsmith.base.errors import ArgumentError


@dataclass(frozen=True, slots=True, order=True)
class AttentionProblem:
    """Shapes and mask of O = softmax(scale · Q Kᵀ + mask) V.

    With `causal`, query row i sees key j when j <= i + `diagonal`; bottom-right alignment is
    diagonal = k_len - q_len (the default when None), top-left is 0.
    """

    batch: int
    heads: int
    kv_heads: int
    q_len: int
    k_len: int
    d_head: int
    dtype: DType = DType.BF16
    causal: bool = False
    diagonal: int | None = None
    scale: float | None = None  # None: 1 / sqrt(d_head)
    layout: str = "bshd"  # or "bhsd"

    def __post_init__(self) -> None:
        for name in ("batch", "heads", "kv_heads", "q_len", "k_len", "d_head"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise ArgumentError(f"{name} is {value!r}, it must be an integer of at least 0.")
        if not isinstance(self.dtype, DType):
            raise ArgumentError(f"dtype is {self.dtype!r}; it is DType.FP16 or DType.BF16.")
        if not isinstance(self.causal, bool):
            raise ArgumentError(f"causal is {self.causal!r}; it is True or False.")
        if isinstance(self.diagonal, bool) or not isinstance(self.diagonal, int | None):
            raise ArgumentError(f"diagonal is {self.diagonal!r}; it is an integer or None.")
        if self.kv_heads and self.heads % self.kv_heads:
            raise ArgumentError(
                f"heads is {self.heads} and kv_heads is {self.kv_heads}; the query heads must be a "
                f"multiple of the key heads."
            )
        if self.layout not in ("bshd", "bhsd"):
            raise ArgumentError(f"layout is {self.layout!r}; it is 'bshd' or 'bhsd'.")
        if self.scale is not None and not (self.scale > 0 and math.isfinite(self.scale)):
            raise ArgumentError(f"scale is {self.scale}; it must be a finite number above 0.")

    @property
    def softmax_scale(self) -> float:
        """The factor of Q Kᵀ."""
        return self.scale if self.scale is not None else 1.0 / math.sqrt(max(self.d_head, 1))

    @property
    def diagonal_offset(self) -> int:
        """How far right of its own index a query row sees, when causal."""
        return self.k_len - self.q_len if self.diagonal is None else self.diagonal
