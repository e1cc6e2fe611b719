"""Tables of a call as torch tensors: in the type and shape of their roles."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from flashsmith.api.arrays.library import Array
from flashsmith.api.bias import require_broadcastable, scores_shape
from flashsmith.api.tables import KEPT_TABLES, ArrayTables, listed, rows_of_tables
from flashsmith.base.errors import ArgumentTypeError
from flashsmith.problem.signature import BIAS, TABLES
from flashsmith.torch_op.arguments import Argument
from flashsmith.torch_op.tensor_view import require_dense

Outputs = tuple[Tensor, Tensor]  # O and the log-sum-exp
_INTEGERS = (torch.int32, torch.int64, torch.int16, torch.int8, torch.uint8)
_INT32 = torch.iinfo(torch.int32)
_TYPES = {name: torch.int32 if role.is_integer else torch.float32 for name, role in TABLES.items()}


def kept_by(forward_with: Callable[..., Outputs]) -> Callable[..., Outputs]:
    """The operator `forward_kept` of a kind of device: the tables by name, and always an LSE."""

    def forward_kept(q: Tensor, k: Tensor, v: Tensor, *rest: Argument) -> Outputs:
        kept, given = rest[: len(KEPT_TABLES)], rest[len(KEPT_TABLES) :]
        named = zip(KEPT_TABLES, kept, strict=True)
        tables = listed({name: table for name, table in named if table is not None})
        return forward_with(q, k, v, tables, True, *given)

    return forward_kept


def cache_by(forward_with: Callable[..., Outputs]) -> Callable[..., Tensor]:
    """The operator `forward_cache` of a kind of device: two tables by name, and no LSE."""

    def forward_cache(
        q: Tensor, k: Tensor, v: Tensor, lengths: Tensor, table: Tensor | None, *given: Argument
    ) -> Tensor:
        return forward_with(q, k, v, [lengths, table], False, *given)[0]

    return forward_cache


def as_tables(tables: ArrayTables, q: Tensor) -> dict[str, Tensor]:
    """Each in its role's type, without gaps; slopes of heads are those of every sequence."""
    rows = rows_of_tables(tables, q.shape[0]) if "alibi_slopes" in tables else 0
    return {name: _as_table(name, table, rows) for name, table in tables.items()}


def expanded(
    tables: Mapping[str, Tensor], q: Tensor, k: Tensor, layout: str
) -> Mapping[str, Tensor]:
    """The same with a bias of all scores, whose strides are 0 where it is broadcast."""
    if BIAS not in tables:
        return tables
    wanted = scores_shape(tuple(q.shape), tuple(k.shape), layout)
    bias = tables[BIAS].detach()
    require_broadcastable(tuple(bias.shape), wanted)
    return {**tables, BIAS: bias.expand(wanted)}


def _as_table(name: str, table: Array, rows: int) -> Tensor:
    if name == BIAS:
        return _as_bias(table)
    if not isinstance(table, torch.Tensor):
        raise ArgumentTypeError(
            f"q is a torch tensor and {name} is of type {type(table).__name__}; pass torch tensors "
            f"for all."
        )
    wanted = _TYPES[name]
    if name == "alibi_slopes" and table.dim() == 1:
        table = table.expand(rows, -1)
    # Nearly always: asking takes a fifth of what two calls take that change nothing.
    if table.dtype is wanted and table.is_contiguous():
        return table
    is_integer = TABLES[name].is_integer
    if not (table.dtype in _INTEGERS if is_integer else table.is_floating_point()):
        raise ArgumentTypeError(f"{name} is {table.dtype}; it must be {wanted}.")
    if table.dtype is torch.int64:  # what lies outside a sequence is clamped, also beyond 32 bits
        table = table.clamp(_INT32.min, _INT32.max)
    return table.to(wanted).contiguous()


def _as_bias(bias: Array) -> Tensor:
    """The tensor as it is: kernels read every type that is taken, at any stride."""
    require_dense({BIAS: bias})
    return bias
