"""torch: calls of its scaled_dot_product_attention go to flashsmith where it takes them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.autograd import forward_ad

from flashsmith.api.dropins import scaled_dot_product_attention
from flashsmith.base.errors import FlashsmithError
from flashsmith.base.loose_types import Foreign
from flashsmith.integrations.routes import Routes
from flashsmith.kernels.width import MAX_TRAINED_D_HEAD

# torch's own, whoever stands in its place: the function that its functional module documents.
_ORIGINAL: Callable[..., Tensor] = torch._C._nn.scaled_dot_product_attention
_POSITIONAL = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
_OLDEST_GPU = (8, 0)
_TAKEN = "supported"
_HALVES = (torch.float16, torch.bfloat16)


class _Router:
    """One `sdpa()` or `install()`: what it takes, and what became of calls."""

    def __init__(self, cpu: bool) -> None:
        self.cpu = cpu
        self.routes = Routes()


_lock = threading.Lock()
_active: list[_Router] = []  # the last one serves
_installed: _Router | None = None


@contextmanager
def sdpa(*, cpu: bool = False) -> Iterator[Routes]:
    """Routes torch's scaled_dot_product_attention to flashsmith, where it supports a call.

    The rest is torch's, unchanged; the routes that this gives say what went where and why. `cpu`
    takes tensors of the CPU, too, which flashsmith hands to torch or, with
    FLASHSMITH_DEVICE=emulator, to its emulator. As torch's own choice of backends this holds for
    the whole process (gradients are computed in other threads), and the innermost one serves.
    Code that imported the function itself, not its module, keeps torch's.
    """
    router = _Router(cpu)
    _enter(router)
    try:
        yield router.routes
    finally:
        _leave(router)


def install(*, cpu: bool = False) -> Routes:
    """The same until `uninstall()`; the routes so far where it is installed."""
    global _installed
    with _lock:
        router = _installed or _Router(cpu)
        is_new, _installed = _installed is None, router
    if is_new:
        _enter(router)
    return router.routes


def uninstall() -> None:
    """Undoes `install`."""
    global _installed
    with _lock:
        router, _installed = _installed, None
    if router is not None:
        _leave(router)


def _enter(router: _Router) -> None:
    with _lock:
        _active.append(router)
        torch.nn.functional.scaled_dot_product_attention = _routed


def _leave(router: _Router) -> None:
    with _lock:
        _active.remove(router)
        if not _active:
            torch.nn.functional.scaled_dot_product_attention = _ORIGINAL


def _routed(*args: Foreign, **kwargs: Foreign) -> Tensor:
    """torch.nn.functional.scaled_dot_product_attention, computed by flashsmith where it can."""
    routers = _active[-1:]  # in one step: another thread may leave
    if not routers:
        return _ORIGINAL(*args, **kwargs)
    asked = dict(zip(_POSITIONAL, args, strict=False)) | kwargs
    tensors = (asked.get("query"), asked.get("key"), asked.get("value"))
    reason = _reason_to_leave(asked, tensors, routers[0].cpu)
    if not reason:
        asked["enable_gqa"] = True  # shapes that share no heads are refused before
    if torch.compiler.is_compiling():  # which follows no call sites
        if not reason:
            return scaled_dot_product_attention(**asked)
        return _ORIGINAL(*args, **kwargs)
    out = None
    if not reason:
        try:
            out = scaled_dot_product_attention(**asked)
        except FlashsmithError as error:
            if not isinstance(error, ValueError | TypeError):
                raise  # no refusal: something went wrong
            reason = str(error)
    routers[0].routes.add(tensors, "torch" if reason else "flashsmith", reason or _TAKEN)
    return _ORIGINAL(*args, **kwargs) if reason else out


def _reason_to_leave(asked: dict[str, Foreign], tensors: tuple[Foreign, ...], cpu: bool) -> str:
    """Why a call is torch's; an empty text where flashsmith takes it."""
    return (
        _of_tensors(tensors, cpu)
        or _of_shapes([tuple(t.shape) for t in tensors], bool(asked.get("enable_gqa")))
        or _of_arguments(asked)
        or _of_modes()
    )


def _of_tensors(tensors: tuple[Foreign, ...], cpu: bool) -> str:
    if not all(isinstance(t, Tensor) for t in tensors):
        return "not three tensors"
    if any(t.is_nested or t.layout is not torch.strided for t in tensors):
        return "nested or sparse tensors"
    if any(type(t) not in (Tensor, torch.nn.Parameter) for t in tensors):
        return "a subclass of Tensor"
    q, k, v = tensors
    if not q.device == k.device == v.device:
        return "several devices"
    if q.device.type != "cuda" and not (cpu and q.device.type == "cpu"):
        return f"tensors of {q.device.type}"
    if q.is_cuda and torch.cuda.get_device_capability(q.device) < _OLDEST_GPU:
        return "a GPU before sm_80"
    if torch.is_autocast_enabled(q.device.type):
        floats = (torch.float32, *_HALVES)
        return "" if all(t.dtype in floats for t in tensors) else f"{q.dtype} under autocast"
    if not q.dtype == k.dtype == v.dtype or q.dtype not in _HALVES:
        return f"{q.dtype}".removeprefix("torch.") if q.dtype == k.dtype else "several types"
    return ""


def _of_shapes(shapes: list[tuple[int, ...]], enable_gqa: bool) -> str:
    q, k, v = shapes
    if not len(q) == len(k) == len(v):
        return "tensors of several numbers of dimensions"
    if len(q) not in (3, 4):
        return f"{len(q)} dimensions"
    if not q[:-3] == k[:-3] == v[:-3]:
        return "batches that are broadcast"
    # One head of keys is broadcast to all, as if it were shared; more are shared where it is said.
    is_shared = k[-3] == 1 or (enable_gqa and k[-3] > 0 and q[-3] % k[-3] == 0)
    if k[:-1] != v[:-1] or (q[-3] != k[-3] and not is_shared):
        return "heads that are broadcast"
    if 0 in q or 0 in k:
        return "no rows"
    if not q[-1] == k[-1] == v[-1]:
        return "values of another width"
    # What is slow in both is left to torch, which has gradients too.
    return f"d_head above {MAX_TRAINED_D_HEAD}" if q[-1] > MAX_TRAINED_D_HEAD else ""


def _of_arguments(asked: dict[str, Foreign]) -> str:
    factor, mask = asked.get("scale"), asked.get("attn_mask")
    if asked.get("dropout_p"):
        return "dropout"
    if factor is not None and not factor > 0:
        return f"a scale of {factor}"
    if mask is None or type(mask).__name__ == "CausalBias":
        return "attn_mask and is_causal" if mask is not None and asked.get("is_causal") else ""
    return _of_mask(mask, asked)


def _of_mask(mask: Foreign, asked: dict[str, Foreign]) -> str:
    if asked.get("is_causal"):
        return "attn_mask and is_causal"
    if type(mask) not in (Tensor, torch.nn.Parameter) or mask.layout is not torch.strided:
        return "attn_mask is not a plain tensor"
    query = asked["query"]
    if mask.dim() < 2 or mask.device != query.device:
        return "attn_mask of another device or of one dimension"
    kinds = (torch.bool, torch.float32, query.dtype)
    return "" if mask.dtype in kinds else f"attn_mask of {mask.dtype}"


def _of_modes() -> str:
    if torch.compiler.is_compiling():
        return ""
    if forward_ad._current_level >= 0:
        return "forward-mode differentiation"
    return "a transform of torch.func" if torch._C._are_functorch_transforms_active() else ""
