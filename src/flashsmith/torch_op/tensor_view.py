"""A torch tensor as the API's checks see it; what is not plain memory is refused."""

from __future__ import annotations

import torch
from torch import Tensor

from flashsmith.api.array_view import ArrayView
from flashsmith.api.arrays.library import Array
from flashsmith.base.errors import ArgumentError, ArgumentTypeError, Unsupported


def require_tensors(q: Array, k: Array, v: Array, out: Array) -> None:
    """Raises unless every argument is a dense tensor that needs no gradient."""
    if not (_is_dense(q) and _is_dense(k) and _is_dense(v) and (out is None or _is_dense(out))):
        _refuse_others({"q": q, "k": k, "v": v} | ({} if out is None else {"out": out}))
    if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
        refuse_gradients({"q": q, "k": k, "v": v})


def is_autocast(tensor: Tensor) -> bool:
    """Whether calls on the tensor's device are cast; others than these two have no autocast."""
    kind = tensor.device.type
    return kind in ("cuda", "cpu") and bool(torch.is_autocast_enabled(kind))


def autocast(tensor: Tensor) -> Tensor:
    """The tensor as torch's own attention sees it: inside autocast, in its element type."""
    # float64 is left alone by torch, too.
    if tensor.dtype is torch.float64 or not tensor.is_floating_point():
        return tensor
    return tensor.to(torch.get_autocast_dtype(tensor.device.type))


def _is_dense(array: object) -> bool:
    return isinstance(array, torch.Tensor) and array.layout is torch.strided and not array.is_nested


def _refuse_others(arrays: dict[str, Array]) -> None:
    for name, array in arrays.items():
        if not isinstance(array, torch.Tensor):
            raise ArgumentTypeError(
                f"q is a torch tensor and {name} is of type {type(array).__name__}; pass torch "
                f"tensors for all."
            )
        if not _is_dense(array):
            raise Unsupported(
                f"{name} is a nested or sparse tensor; flashsmith takes dense ones; pad it first."
            )


def refuse_gradients(arrays: dict[str, Tensor]) -> None:
    """Raises if a tensor waits for a gradient that nothing would compute."""
    for name, tensor in arrays.items():
        if tensor.requires_grad:
            raise Unsupported(
                f"{name} requires a gradient and flashsmith has no backward pass yet; call it "
                f"under torch.no_grad(), or use torch's scaled_dot_product_attention to train."
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
