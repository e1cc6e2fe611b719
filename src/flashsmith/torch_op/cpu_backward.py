"""The backward operator on CPU tensors: by torch's products, or by the emulator if it is asked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from flashsmith.api.host_call import attend_bits
from flashsmith.api.launches import host_device
from flashsmith.api.problems import gradient_problem_of
from flashsmith.api.tables import by_name, in_order
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.mask import Mask
from flashsmith.problem.sequences import SequenceOf, sequences_of
from flashsmith.problem.signature import TABLES, WORD_BYTES
from flashsmith.torch_op.arguments import Argument, options_of
from flashsmith.torch_op.cpu_kernel import require_cpu_options
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
    options = options_of(given, lse=False)
    tensors = {"q": q, "k": k, "v": v, "o": o, "lse": lse, "do": do}
    tensors |= {} if dlse is None else {"dlse": dlse}
    tensors |= by_name(tables)
    views = {name: tensor_view(name, tensor) for name, tensor in tensors.items()}
    of_tables = {name: view for name, view in views.items() if name in TABLES}
    problem = gradient_problem_of(views, options, of_tables)
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
    kind = torch.uint32 if tensor.element_size() == WORD_BYTES else torch.uint16
    bits: NDArray[Any] = tensor.detach().view(kind).numpy()
    return bits


def _by_products(problem: AttentionProblem, tensors: Mapping[str, Tensor]) -> list[Tensor]:
    """The definition in float32, all scores of a dense batch, or of a sequence, at once."""
    rows = {n: _heads_first(tensors[n], problem).float() for n in ("q", "k", "v", "o", "do")}
    rows |= {n: tensors[n].unsqueeze(-1) for n in ("lse", "dlse") if n in tensors}
    found = [torch.zeros_like(rows[name]) for name in "qkv"]
    for at in _parts(problem, tensors):
        if not at.mask.k_len:
            continue
        one = {n: x[:, :, at.keys if n in ("k", "v") else at.rows] for n, x in rows.items()}
        slopes = tensors.get("alibi_slopes")
        if slopes is not None and problem.sequences:
            slopes = slopes[at.number : at.number + 1]
        dq, dk, dv = _of_part(problem, one, at.mask, slopes)
        found[0][:, :, at.rows], found[1][:, :, at.keys], found[2][:, :, at.keys] = dq, dk, dv
    return [_heads_first(x, problem).to(tensors["q"].dtype) for x in found]


def _parts(problem: AttentionProblem, tensors: Mapping[str, Tensor]) -> Iterable[SequenceOf]:
    """Packed sequences one by one; a dense batch is one part."""
    if problem.has_own_lengths:
        tables = {name: t.detach().numpy() for name, t in tensors.items() if name in TABLES}
        return sequences_of(problem, tables)
    return [SequenceOf(0, slice(0, problem.q_len), slice(0, problem.k_len), problem.mask, 0)]


def _of_part(
    problem: AttentionProblem, rows: Mapping[str, Tensor], mask: Mask, slopes: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """dQ, dK and dV of rows (batch, heads, rows, d); slopes are (batch, heads)."""
    q, o, do, lse = rows["q"], rows["o"], rows["do"], rows["lse"]
    k, v = (rows[name].repeat_interleave(problem.group, dim=1) for name in "kv")
    scores = q @ k.transpose(-1, -2) * problem.softmax_scale
    slope: Tensor | float = 1.0
    if problem.softcap is not None:
        share = torch.tanh(scores / problem.softcap)
        scores, slope = problem.softcap * share, 1.0 - share**2
    if slopes is not None:
        scores = scores - slopes[:, :, None, None] * torch.from_numpy(mask.distances())
    p = torch.exp(scores - lse)
    if mask.hides:
        visible = torch.from_numpy(mask.visible())
        p = p.masked_fill(~visible, 0.0)  # rows that see no key have no other
    delta = (do * o).sum(-1, keepdim=True)
    if "dlse" in rows:
        delta = delta - rows["dlse"]
    ds = p * (do @ v.transpose(-1, -2) - delta) * slope
    return (
        ds @ k * problem.softmax_scale,
        _of_groups(ds.transpose(-1, -2) @ q * problem.softmax_scale, problem),
        _of_groups(p.transpose(-1, -2) @ do, problem),
    )


def _of_groups(x: Tensor, problem: AttentionProblem) -> Tensor:
    """Summed over the query heads of each KV head."""
    return x.unflatten(1, (problem.kv_heads, problem.group)).sum(2)


def _heads_first(x: Tensor, problem: AttentionProblem) -> Tensor:
    """From the problem's layout to (batch, heads, rows, d), and back."""
    return x if problem.layout == "bhsd" else x.transpose(1, 2)
