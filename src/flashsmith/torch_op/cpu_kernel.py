"""The operators on CPU tensors: torch's own attention, or the emulator where it is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flashsmith.api.array_view import ArrayView
from flashsmith.api.host_call import attend_bits
from flashsmith.api.launches import host_device
from flashsmith.api.notices import say_once
from flashsmith.api.options import CallOptions
from flashsmith.api.problems import problem_of, require_out_fits, require_room
from flashsmith.api.tables import by_name
from flashsmith.base.errors import ArgumentError
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.needs import exact_facts
from flashsmith.problem.reference import of_head, score
from flashsmith.problem.sequences import sequences_of, with_packed_keys
from flashsmith.problem.signature import BIAS, TABLES
from flashsmith.torch_op.arguments import Argument, options_of
from flashsmith.torch_op.fake_kernel import empty_output, no_lse
from flashsmith.torch_op.on_cpu import is_emulated
from flashsmith.torch_op.tables import cache_by, expanded, kept_by
from flashsmith.torch_op.tensor_view import refuse_gradients, tensor_view

_NO_TABLES: Mapping[str, Tensor] = {}
# Not by its public name: `integrations.torch` may have put flashsmith there.
_torchs_attention = torch._C._nn.scaled_dot_product_attention
_BITS = {1: torch.uint8, 2: torch.uint16, 4: torch.uint32}  # by bytes of an element


def forward(q: Tensor, k: Tensor, v: Tensor, *given: Argument) -> Tensor:
    """Attention of tensors on the CPU."""
    return _attend(q, k, v, options_of(given, lse=False))[0]


def forward_lse(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *given: Argument,
) -> tuple[Tensor, Tensor]:
    """The same, and the log-sum-exp."""
    out, lse = _attend(q, k, v, options_of(given, lse=True))
    assert lse is not None
    return out, lse


def forward_with(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    tables: list[Tensor | None],
    lse: bool,
    *given: Argument,
) -> tuple[Tensor, Tensor]:
    """The same of a call with tables; an LSE without elements where none is asked for."""
    out, of_rows = _attend(q, k, v, options_of(given, lse=lse), by_name(tables))
    return out, no_lse(q) if of_rows is None else of_rows


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
    """The same into `out` and `lse`; a workspace is held to what the call needs, and not used."""
    views = [tensor_view(name, tensor) for name, tensor in zip("qkv", (q, k, v), strict=True)]
    of_tables, of_out = by_name(tables), tensor_view("out", out)
    read = {name: tensor_view(name, table) for name, table in of_tables.items()}
    require_out_fits(of_out, views, read)
    room = None if workspace is None else tensor_view("workspace", workspace)
    options = options_of(given, lse=lse is not None)
    others = (*views, of_out, *read.values())
    computed, of_rows = _attend(q, k, v, options, of_tables, room, others)
    out.copy_(computed)
    if lse is not None and of_rows is not None:
        lse.copy_(of_rows)


forward_kept = kept_by(forward_with)
forward_cache = cache_by(forward_with)


def forward_out(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor | None,
    *given: Argument,
) -> None:
    """The same into `out`, and `lse` if given."""
    views = [tensor_view(name, tensor) for name, tensor in zip("qkv", (q, k, v), strict=True)]
    require_out_fits(tensor_view("out", out), views)
    computed, computed_lse = _attend(q, k, v, options_of(given, lse=lse is not None))
    out.copy_(computed)
    if lse is not None and computed_lse is not None:
        lse.copy_(computed_lse)


def _attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    options: CallOptions,
    tables: Mapping[str, Tensor] = _NO_TABLES,
    workspace: ArrayView | None = None,
    others: tuple[ArrayView, ...] = (),  # beside which the workspace lies
) -> tuple[Tensor, Tensor | None]:
    if torch.is_grad_enabled():
        refuse_gradients({"q": q, "k": k, "v": v})
    tables = expanded(tables, q, k, str(options.fact("layout")))
    views = [tensor_view(name, tensor) for name, tensor in zip("qkv", (q, k, v), strict=True)]
    problem = problem_of(views, options, {n: tensor_view(n, t) for n, t in tables.items()})
    if is_emulated(options):
        return _emulate({"q": q, "k": k, "v": v, **tables}, problem, options, workspace, others)
    if workspace is not None:
        require_room(workspace, 0, "cpu")
    require_cpu_options(problem, options)
    say_once(
        "torch on the CPU",
        "flashsmith was given torch tensors on the CPU and calls torch's own attention; "
        "backend='emulator' or FLASHSMITH_DEVICE=emulator runs flashsmith's kernels.",
    )
    with torch.autocast("cpu", enabled=False):  # rows were cast; sums stay in float32
        if exact_facts(problem):
            return _by_matrices({"q": q, "k": k, "v": v, **tables}, problem)
        return _torch_attention(q, k, v, problem)


def require_cpu_options(problem: AttentionProblem, options: CallOptions) -> None:
    """Raises for options that have no meaning where torch's own operators compute."""
    if options.backend == "cuda":
        raise ArgumentError(
            "backend is 'cuda' and q is on the CPU; move q, k and v to the GPU with .cuda()."
        )
    if options.config is not None:
        raise ArgumentError(
            "config is given and q is on the CPU, where torch's own attention runs; pass "
            "backend='emulator' or move q, k and v to a GPU."
        )


def _emulate(
    tensors: Mapping[str, Tensor],
    problem: AttentionProblem,
    options: CallOptions,
    workspace: ArrayView | None = None,
    others: tuple[ArrayView, ...] = (),
) -> tuple[Tensor, Tensor | None]:
    q = tensors["q"]
    bits = {name: bits_of(tensor) for name, tensor in tensors.items()}
    found, _ = attend_bits(
        host_device("emulator"), problem, bits, options, workspace=workspace, others=others
    )
    out = _like_real(torch.from_numpy(found["o"]).view(q.dtype), q)
    lse = torch.from_numpy(found["lse"].view(np.float32)) if problem.lse else None
    return out, lse


def bits_of(tensor: Tensor) -> NDArray[Any]:
    """The bits of a tensor as unsigned integers of its elements' size; no copy."""
    bits: NDArray[Any] = tensor.detach().view(_BITS[tensor.element_size()]).numpy()
    return bits


def _by_matrices(
    tensors: Mapping[str, Tensor], problem: AttentionProblem
) -> tuple[Tensor, Tensor | None]:
    """What torch's own attention cannot do, by its products and softmax, in float32."""
    tables = {n: t.detach().numpy() for n, t in tensors.items() if n in TABLES and n != BIAS}
    q, k, v = (
        (tensors[n] if problem.layout == "bhsd" else tensors[n].transpose(1, 2)).float()
        for n in "qkv"
    )
    if problem.page:
        k, v = (_contiguous(pool, tensors["block_table"]) for pool in (k, v))
    if problem.page and problem.sequences:
        problem, boundaries = with_packed_keys(problem, tables["k_lengths"])
        tables = {**tables, "cu_seqlens_k": boundaries}
        k, v = (_packed(keys, np.diff(boundaries)) for keys in (k, v))
    out = torch.zeros(*q.shape[:3], problem.v_width)
    lse = torch.full(q.shape[:3], float("-inf"))
    for one in sequences_of(problem, tables):
        b, rows, keys = one.batch, one.rows, one.keys
        visible = torch.from_numpy(one.mask.visible())
        for head in range(problem.heads):
            numbers, kv = of_head(tables, one, head), head // problem.group
            if problem.bias:
                numbers[BIAS] = tensors[BIAS][b, head].float().numpy()
            products = (q[b, head, rows] @ k[b, kv, keys].T).numpy()
            scores = torch.from_numpy(score(problem, products, one.mask, numbers))
            sink = torch.full((scores.shape[0], 1), numbers.get("sinks", float("-inf")))
            scores = torch.cat([scores.masked_fill(~visible, float("-inf")), sink], dim=1)
            lse[b, head, rows] = scores.logsumexp(1)
            weights = scores.softmax(1).nan_to_num(0.0)  # of rows that see no key
            out[b, head, rows] = weights[:, :-1] @ v[b, kv, keys]
    like = tensors["q"]
    found = out if problem.layout == "bhsd" else out.transpose(1, 2)
    return _like_real(found.to(like.dtype), like), lse if problem.lse else None


def _contiguous(pool: Tensor, table: Tensor) -> Tensor:
    """Rows that lie in pages, (pages, heads, page, d), one after the other in each sequence."""
    rows = pool[table.long().clamp(0, pool.shape[0] - 1)]
    return rows.transpose(1, 2).flatten(2, 3)


def _packed(keys: Tensor, lengths: NDArray[np.int32]) -> Tensor:
    """Keys of sequences, (sequences, heads, keys, d), one behind the other in a batch of one."""
    every = [one[:, :length] for one, length in zip(keys, lengths.tolist(), strict=True)]
    return torch.cat([*every, keys[0, :, :1]], dim=1)[None]


def _torch_attention(
    q: Tensor, k: Tensor, v: Tensor, problem: AttentionProblem
) -> tuple[Tensor, Tensor | None]:
    heads_first = [t if problem.layout == "bhsd" else t.transpose(1, 2) for t in (q, k, v)]
    visible = visible_keys(problem)
    hq, hk, hv = heads_first
    if problem.k_len == 0:
        out = torch.zeros_like(hq)
    else:
        out = _torchs_attention(
            hq,
            hk,
            hv,
            attn_mask=visible,
            scale=problem.softmax_scale,
            enable_gqa=problem.heads != problem.kv_heads,
        )
        if visible is not None:  # rows that see no key
            out = out.masked_fill(~visible.any(-1, keepdim=True), 0)
    lse = _log_sum_exp(hq, hk, visible, problem) if problem.lse else None
    out = out if problem.layout == "bhsd" else out.transpose(1, 2)
    return _like_real(out, q), lse


def _like_real(out: Tensor, q: Tensor) -> Tensor:
    """The output with the strides that the operator promises."""
    return empty_output(q, out).copy_(out)


def visible_keys(problem: AttentionProblem) -> Tensor | None:
    """Which keys each row sees, or None where all do."""
    return torch.from_numpy(problem.mask.visible()) if problem.mask.hides else None


def _log_sum_exp(
    hq: Tensor, hk: Tensor, visible: Tensor | None, problem: AttentionProblem
) -> Tensor:
    shared = problem.heads // max(problem.kv_heads, 1)
    keys = hk.float().repeat_interleave(shared, dim=1)
    scores = hq.float() @ keys.transpose(-1, -2) * problem.softmax_scale
    if visible is not None:
        scores = scores.masked_fill(~visible, float("-inf"))
    return scores.logsumexp(-1)
