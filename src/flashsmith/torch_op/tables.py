"""Tables of a call as torch tensors: in the type and shape of their roles."""

from __future__ import annotations

import torch
from torch import Tensor

from flashsmith.api.arrays.library import Array
from flashsmith.api.tables import ArrayTables, in_order
from flashsmith.base.errors import ArgumentTypeError
from flashsmith.problem.signature import TABLES

# Tables of calls that have a backward pass, in the order of the operator `forward_kept`.
KEPT_TABLES = ("sinks", "alibi_slopes", "cu_seqlens_q", "cu_seqlens_k")


def tables_kept(*tables: Tensor | None) -> list[Tensor | None]:
    """Those of `KEPT_TABLES` as the operators that take a list take them."""
    named = zip(KEPT_TABLES, tables, strict=True)
    return in_order({name: table for name, table in named if table is not None})


def as_tables(tables: ArrayTables, q: Tensor) -> dict[str, Tensor]:
    """Each in its role's type, without gaps; slopes of heads are those of every sequence."""
    return {name: _as_table(name, table, q) for name, table in tables.items()}


def _as_table(name: str, table: Array, q: Tensor) -> Tensor:
    if not isinstance(table, torch.Tensor):
        raise ArgumentTypeError(
            f"q is a torch tensor and {name} is of type {type(table).__name__}; pass torch tensors "
            f"for all."
        )
    wanted = torch.int32 if TABLES[name].is_integer else torch.float32
    if table.is_floating_point() == TABLES[name].is_integer:
        raise ArgumentTypeError(f"{name} is {table.dtype}; it must be {wanted}.")
    if name == "alibi_slopes" and table.dim() == 1:
        table = table.expand(q.shape[0], -1)
    return table.to(wanted).contiguous()
