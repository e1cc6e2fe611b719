"""Nested tensors of torch's jagged layout: their values are packed sequences, and so they run."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from flashsmith.api.arrays.library import Array
from flashsmith.api.tables import ArrayTables
from flashsmith.base.errors import ArgumentError, Unsupported

# The dimension whose lengths differ, by layout.
_ROWS = {"bshd": 1, "bhsd": 2}
_OF_HEADS = ("sinks", "alibi_slopes")  # tables that say nothing of a batch's sequences


class Jagged(NamedTuple):
    """Nested tensors taken apart."""

    rows: tuple[Tensor, Tensor, Tensor]  # batches of one
    boundaries: dict[str, Tensor]
    like: Tensor  # the nested tensor whose sequences the output has
    layout: str

    def packed_again(self, out: Tensor, lse: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Output and log-sum-exp, (batch, heads, queries), as nested tensors."""
        of_lse = None if lse is None else _nested(lse[0], self.like, 2)
        return _nested(out[0], self.like, _ROWS[self.layout]), of_lse


def taken_apart(
    q: Array, k: Array, v: Array, out: Array, layout: str, tables: ArrayTables
) -> Jagged:
    """What packed sequences need; raises for tensors that are nested in another way."""
    named = {"q": q, "k": k, "v": v}
    for name, tensor in named.items():
        _require_jagged(name, tensor, layout)
    of_batches = [name for name in tables if name not in _OF_HEADS]
    for name in ("out",) * (out is not None) + (*of_batches,):
        raise Unsupported(f"{name} is given and q is a nested tensor; do not pass {name}.")
    if k.shape[_ROWS[layout]] != v.shape[_ROWS[layout]]:  # compared by torch without a look
        raise ArgumentError(
            "k and v have offsets of their own; make both from the same offsets, so that their "
            "sequences are known to be equally long (torch.nested.nested_tensor_from_jagged)."
        )
    if q.shape[0] != k.shape[0]:
        raise ArgumentError(
            f"q has {q.shape[0]} sequences and k has {k.shape[0]}; they must be equal."
        )
    rows = (q.values()[None], k.values()[None], v.values()[None])
    of_queries = q.offsets().to(torch.int32)
    of_keys = of_queries if q.offsets() is k.offsets() else k.offsets().to(torch.int32)
    return Jagged(rows, {"cu_seqlens_q": of_queries, "cu_seqlens_k": of_keys}, q, layout)


def _require_jagged(name: str, tensor: Array, layout: str) -> None:
    if getattr(tensor, "layout", None) is not torch.jagged:
        raise Unsupported(
            f"q, k and v must all be nested tensors of layout torch.jagged, or all dense, and "
            f"{name} is not as the others; make it with torch.nested.nested_tensor(..., "
            f"layout=torch.jagged)."
        )
    if tensor.lengths() is not None:
        raise Unsupported(
            f"{name} is a nested tensor with gaps between its sequences; pass {name}.contiguous()."
        )
    if tensor.dim() != 4 or tensor._ragged_idx != _ROWS[layout]:
        raise ArgumentError(
            f"{name} is a nested tensor of {tensor.dim()} dimensions, of which number "
            f"{tensor._ragged_idx} is ragged; with layout {layout!r} it must have 4, and number "
            f"{_ROWS[layout]} must be the ragged one."
        )


def _nested(values: Tensor, like: Tensor, ragged: int) -> Tensor:
    return torch.nested.nested_tensor_from_jagged(values, like.offsets(), jagged_dim=ragged)
