"""The operators on a GPU: one look-up by shape, one allocation, one launch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from flashsmith.api.launches import (
    Launch,
    forward_call,
    gpu_device,
    launch_for,
    say_copy,
)
from flashsmith.api.problems import problem_of, require_out_fits
from flashsmith.runtime.device import Device
from flashsmith.runtime.run import fill_empty
from flashsmith.torch_op.fake_kernel import empty_lse, empty_output
from flashsmith.torch_op.tensor_view import refuse_gradients, tensor_view
from flashsmith.torch_op.wish import Wish

_UNALIGNED = 15  # the bits of an address that are 0 at a multiple of 16 bytes
_KEPT_PLANS = 4096  # shapes; a server meets new lengths for as long as it runs
_KEPT_PARAMS = 1024  # of one plan; a model of many layers calls with other addresses in each


@dataclass(frozen=True, slots=True)
class _Plan:
    """A launch, and what does not change between calls of equal shapes and strides."""

    device: Device
    launch: Launch
    ordinal: int
    empty_output: Callable[[Tensor], Tensor]  # of q
    lse_like: Tensor | None  # of one element: `empty_like` of it takes a third of `new_empty`
    copies: bool  # an input must be copied before each launch
    workspace_bytes: int
    params: dict[tuple[int, ...], tuple[bytes, ...]] = field(default_factory=dict)  # by addresses


_plans: dict[tuple[Any, ...], _Plan] = {}  # Any: shapes, strides, types and the wish of a call


def forward(q: Tensor, k: Tensor, v: Tensor, *wish: Any) -> Tensor:  # Any: the fields of a Wish
    """Attention of tensors on a GPU, in torch's current stream."""
    plan = _plan_of(q, k, v, False, wish)
    out = plan.empty_output(q)
    _launch(plan, q, k, v, out, 0)
    return out


def forward_lse(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *wish: Any,  # Any: as above
) -> tuple[Tensor, Tensor]:
    """The same, and the log-sum-exp."""
    plan = _plan_of(q, k, v, True, wish)
    out, lse = plan.empty_output(q), torch.empty_like(plan.lse_like)
    _launch(plan, q, k, v, out, lse.data_ptr())
    return out, lse


def forward_out(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor | None,
    *wish: Any,  # Any: as above
) -> None:
    """The same into `out`, and `lse` if given."""
    plan = _plan_of(q, k, v, lse is not None, wish)
    views = [tensor_view(name, tensor) for name, tensor in zip("qkv", (q, k, v), strict=True)]
    require_out_fits(tensor_view("out", out), views)
    lse_at = 0 if lse is None else lse.data_ptr()
    _launch_copies(plan, (q, k, v), out, lse_at, _current_stream(plan.ordinal))


def _plan_of(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lse: bool,
    wish: tuple[Any, ...],  # Any: as above
) -> _Plan:
    """The plan for tensors of these shapes, strides, types and devices."""
    key = (
        *(q.shape, k.shape, v.shape, q.stride(), k.stride(), v.stride()),
        *(q.dtype, k.dtype, v.dtype, q.get_device(), k.get_device(), v.get_device()),
        *(lse, wish),
    )
    if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
        refuse_gradients({"q": q, "k": k, "v": v})
    plan = _plans.get(key)
    if plan is None:
        if len(_plans) >= _KEPT_PLANS:
            _plans.clear()
        plan = _plans[key] = _make_plan(q, k, v, Wish(*wish), lse)
    return plan


def _make_plan(q: Tensor, k: Tensor, v: Tensor, wish: Wish, lse: bool) -> _Plan:
    options = wish.options(lse)
    views = [tensor_view(name, tensor) for name, tensor in zip("qkv", (q, k, v), strict=True)]
    problem = problem_of(views, options)
    device = gpu_device(views[0], options.backend)
    launch = launch_for(device, problem, options, views)
    return _Plan(
        device=device,
        launch=launch,
        ordinal=q.get_device(),
        empty_output=torch.empty_like if torch.empty_like(q).stride(3) == 1 else empty_output,
        lse_like=_lse_like(q, wish.heads_first) if lse else None,
        copies=any(replace(view, address=0).obstacle() for view in views),
        workspace_bytes=launch.start.plan.workspace_bytes if launch.start is not None else 0,
    )


def _lse_like(q: Tensor, heads_first: bool) -> Tensor:
    """A tensor with the shape of the log-sum-exp that takes the memory of one number."""
    shape = empty_lse(q.to("meta"), heads_first).shape
    return q.new_empty((), dtype=torch.float32).expand(shape)


def _launch(plan: _Plan, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: int) -> None:
    """Launches into an output that `empty_output` made: its strides follow from those of q."""
    stream = _current_stream(plan.ordinal)
    start = plan.launch.start
    if start is None or plan.copies:
        _launch_copies(plan, (q, k, v), out, lse, stream)
        return
    workspace = plan.workspace_bytes and plan.device.workspace(plan.workspace_bytes, stream)
    addresses = (q.data_ptr(), k.data_ptr(), v.data_ptr(), out.data_ptr(), lse, workspace)
    params = plan.params.get(addresses)
    if params is None:
        if (addresses[0] | addresses[1] | addresses[2]) & _UNALIGNED:
            _launch_copies(plan, (q, k, v), out, lse, stream)
            return
        named = zip(("q", "k", "v", "out"), (q, k, v, out), strict=True)
        views = [tensor_view(name, tensor) for name, tensor in named]
        call = replace(forward_call(views, plan.launch.problem.layout, lse), workspace=workspace)
        if len(plan.params) >= _KEPT_PARAMS:
            plan.params.clear()
        params = plan.params[addresses] = start.plan.params(plan.device, call)
    start.launcher(params, stream)


def _launch_copies(
    plan: _Plan, tensors: tuple[Tensor, Tensor, Tensor], out: Tensor, lse: int, stream: int
) -> None:
    """Launches on the tensors, or on contiguous copies of what no kernel can read in place."""
    views, kept = [], []
    for name, tensor in zip("qkv", tensors, strict=True):
        view = tensor_view(name, tensor)
        obstacle = view.obstacle()
        if obstacle:
            say_copy(view, obstacle)
            # Kept until the launch is queued: torch reuses memory in the order of its stream.
            kept.append(tensor.clone(memory_format=torch.contiguous_format))
            view = tensor_view(name, kept[-1])
        views.append(view)
    problem = plan.launch.problem
    call = forward_call([*views, tensor_view("out", out)], problem.layout, lse)
    if plan.launch.start is None:
        fill_empty(plan.device, problem, call, stream)
    else:
        plan.launch.start(call, stream)


def _public_current_stream(ordinal: int) -> int:
    return int(torch.cuda.current_stream(ordinal).cuda_stream)


# What code generated by torch.compile calls, too: a tenth of the cost of the public way.
_current_stream = getattr(torch._C, "_cuda_getCurrentRawStream", _public_current_stream)
