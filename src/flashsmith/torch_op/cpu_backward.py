"""The backward operator on CPU tensors: by torch's products, or by the emulator if it is asked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from flashsmith.api.bias import reduced
from flashsmith.api.host_call import attend_bits
from flashsmith.api.launches import host_device
from flashsmith.api.problems import gradient_problem_of
from flashsmith.api.tables import by_name, in_order
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.reference import LEAST_SCORE
from flashsmith.problem.sequences import SequenceOf, sequences_of
from flashsmith.problem.signature import BIAS, TABLES
from flashsmith.torch_op.arguments import Argument, Given, options_of
from flashsmith.torch_op.cpu_kernel import bits_of, require_cpu_options
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
    dq, dk, dv = _differentiate((do, q, k, v, o, lse, dlse), by_name(tables), given)
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
    named = by_name(tables)
    shape = tuple(named[BIAS].shape)
    dq, dk, dv, dbias = _differentiate((do, q, k, v, o, lse, dlse), named, given, shape)
    return dq, dk, dv, reduced(dbias, shape).to(named[BIAS].dtype)


def _differentiate(
    rows: tuple[Tensor | None, ...],
    tables: Mapping[str, Tensor],
    given: Given,
    of_bias: tuple[int, ...] | None = None,
) -> tuple[Tensor, ...]:
    """dQ, dK and dV; with the shape of a bias its gradient, of every row and key."""
    options = options_of(given, lse=False)
    tensors = rows_by_name(*rows)
    q, k, v = (tensors[name] for name in "qkv")
    tensors |= expanded(tables, q, k, str(options.fact("layout")))
    views = {name: tensor_view(name, tensor) for name, tensor in tensors.items()}
    of_tables = {name: view for name, view in views.items() if name in TABLES}
    problem = gradient_problem_of(views, options, of_tables, of_bias)
    if options.backend == "emulator":
        bits = {name: bits_of(tensor) for name, tensor in tensors.items()}
        found, _ = attend_bits(host_device("emulator"), problem, bits, options)
        made = [torch.from_numpy(found[name]).view(q.dtype) for name in ("dq", "dk", "dv")]
        dbias = torch.from_numpy(found["dbias"]).view(torch.float32) if problem.dbias else None
    else:
        require_cpu_options(problem, options)
        with torch.autocast("cpu", enabled=False):  # sums stay in float32
            made, dbias = _by_products(problem, tensors)
    like_given = [empty_output(x).copy_(y) for x, y in zip((q, k, v), made, strict=True)]
    return tuple(like_given) if dbias is None else (*like_given, dbias)


def _by_products(
    problem: AttentionProblem, tensors: Mapping[str, Tensor]
) -> tuple[list[Tensor], Tensor | None]:
    """The definition in float32, all scores of a dense batch, or of a sequence, at once."""
    matrices = (problem.bias_sequences, problem.bias_heads)
    dbias = torch.zeros(*matrices, problem.q_len, problem.k_len) if problem.dbias else None
    rows = {n: _heads_first(tensors[n], problem).float() for n in ("q", "k", "v", "o", "do")}
    rows |= {n: tensors[n].unsqueeze(-1) for n in ("lse", "dlse") if n in tensors}
    found = [torch.zeros_like(rows[name]) for name in "qkv"]
    for at in _parts(problem, tensors):
        if not at.mask.k_len:
            continue
        one = {n: x[:, :, at.keys if n in ("k", "v") else at.rows] for n, x in rows.items()}
        dq, dk, dv, of_scores = _of_part(problem, one, at, tensors)
        if problem.dbias:  # of a dense batch, which is one part
            dbias = of_scores
            for axis in _shared_dimensions(problem):
                dbias = dbias.sum(axis, keepdim=True)
        found[0][:, :, at.rows], found[1][:, :, at.keys], found[2][:, :, at.keys] = dq, dk, dv
    return [_heads_first(x, problem).to(tensors["q"].dtype) for x in found], dbias


def _shared_dimensions(problem: AttentionProblem) -> tuple[int, ...]:
    """Of (batch, heads, rows, keys), those along which a bias is the same."""
    own = (problem.bias_sequences == problem.batch, problem.bias_heads == problem.heads)
    return tuple(axis for axis, is_own in enumerate(own) if not is_own)


def _parts(problem: AttentionProblem, tensors: Mapping[str, Tensor]) -> Iterable[SequenceOf]:
    """Packed sequences one by one; a dense batch is one part."""
    if problem.has_own_lengths:
        tables = {name: t.detach().numpy() for name, t in tensors.items() if name in TABLES}
        return sequences_of(problem, tables)
    return [SequenceOf(0, slice(0, problem.q_len), slice(0, problem.k_len), problem.mask, 0)]


def _of_part(
    problem: AttentionProblem,
    rows: Mapping[str, Tensor],
    at: SequenceOf,
    tables: Mapping[str, Tensor],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """dQ, dK and dV of rows (batch, heads, rows, d), and the gradient of their scores.

    Slopes are (batch, heads), or of packed sequences, of which one is `at`, (sequences, heads).
    """
    mask = at.mask
    q, o, do, lse = rows["q"], rows["o"], rows["do"], rows["lse"]
    k, v = (rows[name].repeat_interleave(problem.group, dim=1) for name in "kv")
    scores = q @ k.transpose(-1, -2) * problem.softmax_scale
    slope: Tensor | float = 1.0
    if problem.softcap is not None:
        share = scores / problem.softcap
        power = torch.exp(-2.0 * share.abs())  # as `problem.reference.score_slope`
        scores, slope = problem.softcap * torch.tanh(share), 4.0 * power / (1.0 + power) ** 2
    if problem.alibi:
        own = slice(at.number, at.number + 1) if problem.sequences else slice(None)
        slopes = tables["alibi_slopes"][own, :, None, None]
        scores = scores - slopes * torch.from_numpy(mask.distances())
    if mask.hides:
        scores = scores.masked_fill(~torch.from_numpy(mask.visible()), float("-inf"))
    if problem.bias:
        scores = _biased(scores, tables[BIAS])
    # Rows that see no key have an LSE of -inf, too.
    p = torch.exp(scores - lse).masked_fill(scores == float("-inf"), 0.0)
    delta = (do * o).sum(-1, keepdim=True)
    if "dlse" in rows:
        delta = delta - rows["dlse"]
    of_scores = p * (do @ v.transpose(-1, -2) - delta)
    ds = of_scores * slope
    return (
        ds @ k * problem.softmax_scale,
        _of_groups(ds.transpose(-1, -2) @ q * problem.softmax_scale, problem),
        _of_groups(p.transpose(-1, -2) @ do, problem),
        of_scores,
    )


def _biased(scores: Tensor, bias: Tensor) -> Tensor:
    """As `problem.reference.score`."""
    if bias.dtype is torch.bool:
        return scores.masked_fill(~bias, float("-inf"))
    biased = scores + bias
    return biased.masked_fill(biased < LEAST_SCORE, float("-inf"))


def _of_groups(x: Tensor, problem: AttentionProblem) -> Tensor:
    """Summed over the query heads of each KV head."""
    return x.unflatten(1, (problem.kv_heads, problem.group)).sum(2)


def _heads_first(x: Tensor, problem: AttentionProblem) -> Tensor:
    """From the problem's layout to (batch, heads, rows, d), and back."""
    return x if problem.layout == "bhsd" else x.transpose(1, 2)
