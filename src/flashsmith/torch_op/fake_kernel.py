"""What the operators return, without computing it: for FakeTensors, meta tensors and export."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch._subclasses import FakeTensor

from flashsmith.api.array_view import ArrayView
from flashsmith.api.bias import broadcast_view, scores_shape
from flashsmith.api.problems import problem_of
from flashsmith.api.tables import by_name, in_order
from flashsmith.problem.signature import BIAS
from flashsmith.torch_op.arguments import Argument, Given, options_of
from flashsmith.torch_op.tables import cache_by, kept_by

_NO_TABLES: Mapping[str, Tensor] = {}


def forward(q: Tensor, k: Tensor, v: Tensor, *given: Argument) -> Tensor:
    """An output like the real one, in shape, strides and type."""
    _check(q, k, v, given)
    return empty_output(q, v)


def forward_lse(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *given: Argument,
) -> tuple[Tensor, Tensor]:
    """The same, and a log-sum-exp."""
    _check(q, k, v, given)
    return empty_output(q, v), empty_lse(q, options_of(given, lse=True).fact("layout"))


def forward_out(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor | None,
    *given: Argument,
) -> None:
    """Nothing to return: `out` and `lse` are written."""
    _check(q, k, v, given)


def forward_with(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    tables: list[Tensor | None],
    lse: bool,
    *given: Argument,
) -> tuple[Tensor, Tensor]:
    """The same of a call with tables; an LSE without elements where none is asked for."""
    _check(q, k, v, given, by_name(tables))
    layout = options_of(given, lse=lse).fact("layout")
    return empty_output(q, v), empty_lse(q, layout) if lse else no_lse(q)


def forward_into(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    tables: list[Tensor | None],
    out: Tensor,
    lse: Tensor | None,
    workspace: Tensor | None,
    *given: Argument,
) -> None:
    """Nothing to return: `out`, `lse` and `workspace` are written."""
    _check(q, k, v, given, by_name(tables))


forward_kept = kept_by(forward_with)
forward_cache = cache_by(forward_with)


def no_lse(q: Tensor) -> Tensor:
    """What stands for a log-sum-exp that nobody asked for."""
    return q.new_empty((0,), dtype=torch.float32)


def backward(
    do: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    lse: Tensor,
    dlse: Tensor | None = None,
    *given: Argument,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients like q, k and v."""
    return backward_with(do, q, k, v, o, lse, dlse, in_order({}), *given)


def backward_with(
    do: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    lse: Tensor,
    dlse: Tensor | None,
    tables: list[Tensor | None],
    *given: Argument,
) -> tuple[Tensor, Tensor, Tensor]:
    """The same of a call with tables."""
    _check(q, k, v, given, by_name(tables))
    return empty_output(q), empty_output(k), empty_output(v)


def backward_bias(
    do: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    lse: Tensor,
    dlse: Tensor | None,
    tables: list[Tensor | None],
    *given: Argument,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The same, and a gradient like the bias."""
    found = backward_with(do, q, k, v, o, lse, dlse, tables, *given)
    bias = by_name(tables)[BIAS]
    return (*found, torch.empty_like(bias, memory_format=torch.contiguous_format))


def refuse(q: Tensor, error: str, message: str) -> Tensor:
    """Anything: it is never made."""
    return torch.empty_like(q)


def empty_output(q: Tensor, v: Tensor | None = None) -> Tensor:
    """The output: its dimensions lie in memory in the order of q's, the last one contiguous.

    It is as wide as v, if that is given, and as q else.
    """
    if v is not None and q.dim() == 4 and v.dim() == 4 and v.shape[3] < q.shape[3]:
        q = q[..., : v.shape[3]]
    out = torch.empty_like(q)
    if q.dim() != 4:  # refused when it runs
        return out
    return out if out.stride(3) == 1 else torch.empty_like(q, memory_format=torch.contiguous_format)


def empty_lse(q: Tensor, layout: str) -> Tensor:
    """The log-sum-exp: float32 (batch, heads, queries)."""
    if q.dim() != 4:  # refused when it runs
        return q.new_empty((0, 0, 0), dtype=torch.float32)
    batch, first, second = q.shape[:3]
    heads, q_len = (first, second) if layout == "bhsd" else (second, first)
    return q.new_empty((batch, heads, q_len), dtype=torch.float32)


def _check(
    q: Tensor, k: Tensor, v: Tensor, given: Given, tables: Mapping[str, Tensor] = _NO_TABLES
) -> None:
    """Refuses for meta tensors what would be refused at run time, as far as sizes are known.

    What torch.compile traces is refused when it runs, in the same call: an error while tracing
    would reach the caller at the end of a page about tracing.
    """
    named = {"q": q, "k": k, "v": v, **tables}
    if any(isinstance(tensor, FakeTensor) for tensor in named.values()):
        return
    if any(type(n) is not int for tensor in named.values() for n in tensor.shape):
        return
    views = {
        name: ArrayView(
            name=name,
            shape=tuple(tensor.shape),
            strides=tuple(tensor.stride()),
            dtype=str(tensor.dtype).removeprefix("torch."),
            address=0,
            device=str(tensor.device),
        )
        for name, tensor in named.items()
    }
    options = options_of(given, lse=False)
    of_tables = {name: views[name] for name in tables}
    if BIAS in of_tables:
        wanted = scores_shape(q.shape, k.shape, str(options.fact("layout")))
        of_tables[BIAS] = broadcast_view(of_tables[BIAS], wanted)
    problem_of([views[name] for name in "qkv"], options, of_tables)
