"""A torch tensor as the API's checks see it; what is not plain memory is refused."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from flashsmith.api.array_view import ArrayView
from flashsmith.api.arrays.library import Array
from flashsmith.base.errors import ArgumentError, ArgumentTypeError, Unsupported

_TENSOR, _STRIDED = torch.Tensor, torch.strided


def are_jagged(q: Array, k: Array, v: Array, out: Array) -> bool:
    """Whether one is a nested tensor of the jagged layout; raises unless the rest are dense."""
    # Every call passes here: `_is_dense` written out takes half of its time.
    if (
        not isinstance(q, _TENSOR)
        or not isinstance(k, _TENSOR)
        or not isinstance(v, _TENSOR)
        or not (q.layout is k.layout is v.layout is _STRIDED)
        or (q.is_nested or k.is_nested or v.is_nested)
        or not (out is None or _is_dense(out))
    ):
        if any(getattr(x, "layout", None) is torch.jagged for x in (q, k, v)):
            return True
        require_tensors(q, k, v, out)
    return False


def require_tensors(q: Array, k: Array, v: Array, out: Array) -> None:
    """Raises unless every argument is a dense tensor."""
    require_dense({"q": q, "k": k, "v": v} | ({} if out is None else {"out": out}))


def is_autocast(tensor: Tensor) -> bool:
    """Whether calls on the tensor's device are cast; others than these two have no autocast."""
    if tensor.is_cuda:
        return bool(torch.is_autocast_enabled())  # without a name: that of CUDA, and quicker
    return bool(torch.is_autocast_enabled("cpu")) and tensor.device.type == "cpu"


def autocast(tensor: Tensor) -> Tensor:
    """The tensor as torch's own attention sees it: inside autocast, in its element type."""
    # float64 is left alone by torch, too.
    if tensor.dtype is torch.float64 or not tensor.is_floating_point():
        return tensor
    return tensor.to(torch.get_autocast_dtype(tensor.device.type))


def _is_dense(array: object) -> bool:
    return isinstance(array, torch.Tensor) and array.layout is torch.strided and not array.is_nested


def require_dense(arrays: Mapping[str, Array]) -> None:
    """Raises unless all are dense tensors."""
    for name, array in arrays.items():
        if not isinstance(array, torch.Tensor):
            raise ArgumentTypeError(
                f"q is a torch tensor and {name} is of type {type(array).__name__}; pass torch "
                f"tensors for all."
            )
        if not _is_dense(array):
            raise Unsupported(
                f"{name} is a sparse tensor or nested in the strided layout; flashsmith takes "
                f"dense ones, and nested ones of layout torch.jagged."
            )


def refuse_gradients(arrays: dict[str, Tensor]) -> None:
    """Raises if a tensor waits for a gradient that nothing would compute."""
    for name, tensor in arrays.items():
        if tensor.requires_grad:
            raise Unsupported(
                f"{name} requires a gradient and this operator keeps no log-sum-exp for it; call "
                f"flash_attention or torch.ops.flashsmith.forward_lse, or use torch.no_grad()."
            )


def refuse_out(q: Tensor, k: Tensor, v: Tensor) -> None:
    """Raises: autograd cannot follow a call that writes into the caller's memory."""
    name = next(n for n, tensor in (("q", q), ("k", k), ("v", v)) if tensor.requires_grad)
    raise Unsupported(
        f"out is given and {name} requires a gradient; autograd cannot follow a result into "
        f"out; do not pass out, or call under torch.no_grad()."
    )


def tensor_view(name: str, tensor: Tensor) -> ArrayView:
    """Where a tensor lies."""
    kind, index = tensor.device.type, tensor.device.index
    if kind not in ("cpu", "cuda"):
        raise ArgumentError(
            f"{name} is on {tensor.device}; flashsmith works on cuda and cpu; move it there."
        )
    return ArrayView(
        name=name,
        shape=tuple(tensor.shape),
        strides=tensor.stride(),
        dtype=str(tensor.dtype).removeprefix("torch."),
        address=tensor.data_ptr(),
        device="cpu" if kind == "cpu" else f"cuda:{index}",
    )


def rows_by_name(*rows: Tensor | None) -> dict[str, Tensor]:
    """What operators of gradients are given, in their order, by the names of the roles."""
    named = zip(("do", "q", "k", "v", "o", "lse", "dlse"), rows, strict=True)
    return {name: tensor for name, tensor in named if tensor is not None}
