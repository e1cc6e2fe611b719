"""The backward operator on a GPU: one look-up by shape, torch's allocator, the plan's launches."""

from __future__ import annotations

import torch
from torch import Tensor

from flashsmith.api.array_view import compact
from flashsmith.api.bias import reduced
from flashsmith.api.launches import Launch, call_of, gpu_device, kept_launch, launch_for
from flashsmith.api.problems import gradient_problem_of
from flashsmith.api.tables import by_name
from flashsmith.kernels.launch import SCRATCH
from flashsmith.problem.signature import BIAS, TABLES
from flashsmith.torch_op.arguments import Argument, Given, layout_of, options_of
from flashsmith.torch_op.cuda_kernel import begins_of, current_stream
from flashsmith.torch_op.fake_kernel import empty_output
from flashsmith.torch_op.tables import expanded
from flashsmith.torch_op.tensor_view import rows_by_name, tensor_view


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
    """dq, dk and dv of tensors on a GPU, in torch's current stream."""
    inputs = rows_by_name(do, q, k, v, o, lse, dlse)
    dq, dk, dv = _differentiate(inputs, given)
    return dq, dk, dv


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
    inputs = rows_by_name(do, q, k, v, o, lse, dlse)
    inputs |= expanded(by_name(tables), q, k, layout_of(given))
    dq, dk, dv = _differentiate(inputs, given)
    return dq, dk, dv


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
    """The same, and the gradient of the bias."""
    inputs = rows_by_name(do, q, k, v, o, lse, dlse)
    named = by_name(tables)
    inputs |= expanded(named, q, k, layout_of(given))
    shape = tuple(named[BIAS].shape)
    dq, dk, dv, dbias = _differentiate(inputs, given, shape)
    return dq, dk, dv, reduced(dbias, shape).to(named[BIAS].dtype)


def _differentiate(
    inputs: dict[str, Tensor], given: Given, of_bias: tuple[int, ...] | None = None
) -> tuple[Tensor, ...]:
    """dQ, dK and dV; with the shape of a bias its gradient, as the kernels write it."""
    launch = _launch_of(inputs, given, of_bias)
    q, k, v = (inputs[name] for name in "qkv")
    made = {"dq": empty_output(q), "dk": empty_output(k), "dv": empty_output(v)}
    if of_bias is not None:
        problem = launch.prepared.problem
        matrices = (problem.bias_sequences, problem.bias_heads)
        made["dbias"] = q.new_empty((*matrices, *inputs[BIAS].shape[2:]), dtype=torch.float32)
    placed = {name: _readable(name, tensor) for name, tensor in inputs.items()} | made
    n_bytes = launch.prepared.scratch_bytes
    if n_bytes:  # freed in the order of the stream, as every tensor of torch
        placed[SCRATCH] = torch.empty(n_bytes, dtype=torch.uint8, device=q.device)
    views = [tensor_view(name, tensor) for name, tensor in placed.items()]
    call = call_of(views, launch.prepared.problem.layout)
    launch.prepared(call, current_stream(q.get_device()))
    return tuple(made.values())


def _launch_of(inputs: dict[str, Tensor], given: Given, of_bias: tuple[int, ...] | None) -> Launch:
    """The launch for tensors of these shapes, strides, types and devices."""
    facts = ((n, t.shape, t.stride(), t.dtype, t.get_device()) for n, t in inputs.items())
    key = ("backward", begins_of(inputs[BIAS]) if BIAS in inputs else 0, of_bias, *facts, given)
    return kept_launch(key, lambda: _make_launch(inputs, given, of_bias))


def _make_launch(
    inputs: dict[str, Tensor], given: Given, of_bias: tuple[int, ...] | None
) -> Launch:
    options = options_of(given, lse=False)
    views = {name: tensor_view(name, tensor) for name, tensor in inputs.items()}
    of_tables = {name: view for name, view in views.items() if name in TABLES}
    problem = gradient_problem_of(views, options, of_tables, of_bias)
    device = gpu_device(views["q"], options.backend)
    return launch_for(device, problem, options, list(views.values()))


def _readable(name: str, tensor: Tensor) -> Tensor:
    """The tensor, or a contiguous copy where no kernel can read it in place.

    Nothing is said of it: the forward call said it of q, k and v, and autograd made the others.
    """
    if name == BIAS:  # at any strides
        return tensor
    view = tensor_view(name, tensor)
    is_readable = (
        not view.obstacle() if len(view.shape) == 4 else view.strides == compact(view.shape)
    )
    return tensor if is_readable else tensor.clone(memory_format=torch.contiguous_format)
