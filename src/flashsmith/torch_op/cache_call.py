"""A call on a cache that was made before: a look-up, an output and a launch, and no operator.

What an operator is for (gradients, transforms, tracing, modes that watch, tensors that are not what
their memory holds) is asked about first, and then all that its launch follows from. Where one
answer is not the plain one, the call goes its usual way.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.compiler import is_compiling

from flashsmith.api.arrays.library import Array
from flashsmith.api.caches.kv_cache import Asked
from flashsmith.api.launches import KEPT_LAUNCHES, kept_launch
from flashsmith.api.options import CallOptions
from flashsmith.torch_op.arguments import given_of
from flashsmith.torch_op.cuda_kernel import Tables, TorchLaunch, key_with, run_with
from flashsmith.torch_op.tensor_view import is_autocast

_TENSOR = torch.Tensor
# Questions of a twentieth of a microsecond each.
_is_profiled = torch.autograd._profiler_enabled  # an operator has a name that profiles show
_is_transformed = torch._C._are_functorch_transforms_active
_is_traced = torch._C._is_tracing
_modes = torch._C._len_torch_dispatch_stack
_function_modes = torch._C._len_torch_function_stack
_is_grad_enabled = torch.is_grad_enabled


def run_again(
    q: Array, k: Array, v: Array, lengths: Array, table: Array, asked: Asked
) -> Tensor | tuple[Tensor, Tensor] | None:
    """The result of a call such as one that `keep` has seen; None where there was none."""
    if is_compiling() or not _is_plain(q, k, v, lengths, table):
        return None
    tables = (lengths,) if table is None else (lengths, table)
    lse = bool(asked[-1])
    launch = KEPT_LAUNCHES.get(key_with(q, k, v, tables, lse, asked))
    if launch is None:
        return None
    found = run_with(launch, q, k, v, tables, lse)  # type: ignore[arg-type]  # `keep` put it there
    return found if lse else found[0]


def keep(
    q: Array,
    k: Array,
    v: Array,
    lengths: Array,
    table: Array,
    asked: Asked,
    options: CallOptions,
) -> None:
    """Lets `run_again` find the launch of a call that an operator has just run on a GPU.

    Tensors that the operator was not given as they are (cast, padded, copied) have no launch there.
    """
    if is_compiling() or not _is_plain(q, k, v, lengths, table):
        return
    tables: Tables = (lengths,) if table is None else (lengths, table)
    lse = bool(asked[-1])
    launch = KEPT_LAUNCHES.get(key_with(q, k, v, tables, lse, given_of(options)))
    if isinstance(launch, TorchLaunch) and launch.is_direct:
        kept_launch(key_with(q, k, v, tables, lse, asked), lambda: launch)


def _is_plain(q: Array, k: Array, v: Array, lengths: Array, table: Array) -> bool:
    """Whether the tensors are memory and no more, and nobody but the caller waits for a result."""
    return (
        type(q) is _TENSOR
        and type(k) is _TENSOR
        and type(v) is _TENSOR
        and type(lengths) is _TENSOR
        and (table is None or type(table) is _TENSOR)
        and not (
            # Wrapped tensors first: they answer some of the questions below with an error.
            _is_transformed()
            or _modes()
            or _function_modes()
            or _is_traced()
            or _is_profiled()
            or forward_ad._current_level >= 0
            or is_autocast(q)
            or not (q.layout is k.layout is v.layout is torch.strided)
            or (q.is_nested or k.is_nested or v.is_nested)
            or (q.is_neg() or k.is_neg() or v.is_neg())
            or (_is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad))
        )
    )
