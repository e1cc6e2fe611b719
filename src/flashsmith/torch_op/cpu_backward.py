"""The backward operator on CPU tensors: by torch's products, or by the emulator if it is asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from flashsmith.api.host_call import attend_bits
from flashsmith.api.launches import host_device
from flashsmith.api.problems import gradient_problem_of
from flashsmith.problem.attention import AttentionProblem
from flashsmith.torch_op.arguments import Argument, options_of
from flashsmith.torch_op.cpu_kernel import require_cpu_options, visible_keys
from flashsmith.torch_op.fake_kernel import empty_output
from flashsmith.torch_op.tensor_view import tensor_view


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
    """dq, dk and dv of tensors on the CPU."""
    options = options_of(given, lse=False)
    tensors = {"q": q, "k": k, "v": v, "o": o, "lse": lse, "do": do}
    tensors |= {} if dlse is None else {"dlse": dlse}
    views = {name: tensor_view(name, tensor) for name, tensor in tensors.items()}
    problem = gradient_problem_of(views, options)
    if options.backend == "emulator":
        bits = {name: _bits(tensor) for name, tensor in tensors.items()}
        found, _ = attend_bits(host_device("emulator"), problem, bits, options)
        made = [torch.from_numpy(found[name]).view(q.dtype) for name in ("dq", "dk", "dv")]
    else:
        require_cpu_options(problem, options)
        made = _by_products(problem, tensors)
    dq, dk, dv = (empty_output(x).copy_(y) for x, y in zip((q, k, v), made, strict=True))
    return dq, dk, dv


def _bits(tensor: Tensor) -> NDArray[Any]:
    kind = torch.uint32 if tensor.dtype == torch.float32 else torch.uint16
    bits: NDArray[Any] = tensor.detach().view(kind).numpy()
    return bits


def _by_products(problem: AttentionProblem, tensors: Mapping[str, Tensor]) -> list[Tensor]:
    """The definition in float32, all scores at once."""
    rows = {n: _heads_first(tensors[n], problem).float() for n in ("q", "k", "v", "o", "do")}
    q, o, do = rows["q"], rows["o"], rows["do"]
    k, v = (rows[name].repeat_interleave(problem.group, dim=1) for name in "kv")
    lse = tensors["lse"].unsqueeze(-1)
    scores = q @ k.transpose(-1, -2) * problem.softmax_scale
    slope: Tensor | float = 1.0
    if problem.softcap is not None:
        share = torch.tanh(scores / problem.softcap)
        scores, slope = problem.softcap * share, 1.0 - share**2
    p = torch.exp(scores - lse)
    visible = visible_keys(problem)
    if visible is not None:
        p = p.masked_fill(~visible, 0.0)  # rows that see no key have no other
    delta = (do * o).sum(-1, keepdim=True)
    if "dlse" in tensors:
        delta = delta - tensors["dlse"].unsqueeze(-1)
    ds = p * (do @ v.transpose(-1, -2) - delta) * slope
    found = [
        ds @ k * problem.softmax_scale,
        _of_groups(ds.transpose(-1, -2) @ q * problem.softmax_scale, problem),
        _of_groups(p.transpose(-1, -2) @ do, problem),
    ]
    return [_heads_first(x, problem).to(tensors["q"].dtype) for x in found]


def _of_groups(x: Tensor, problem: AttentionProblem) -> Tensor:
    """Summed over the query heads of each KV head."""
    return x.unflatten(1, (problem.kv_heads, problem.group)).sum(2)


def _heads_first(x: Tensor, problem: AttentionProblem) -> Tensor:
    """From the problem's layout to (batch, heads, rows, d), and back."""
    return x if problem.layout == "bhsd" else x.transpose(1, 2)
