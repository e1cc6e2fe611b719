"""The operators on a GPU: one look-up by shape, one allocation, the launches of the plan."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from flashsmith.api.launches import (
    KEPT_LAUNCHES,
    Launch,
    call_of,
    gpu_device,
    kept_launch,
    launch_for,
    say_copy,
)
from flashsmith.api.problems import problem_of, require_out_fits, require_room
from flashsmith.api.tables import TABLE_ORDER, by_name
from flashsmith.kernels.launch import SCRATCH, Call
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.signature import BIAS
from flashsmith.torch_op.arguments import Argument, Given, layout_of, options_of
from flashsmith.torch_op.fake_kernel import empty_lse, empty_output, no_lse
from flashsmith.torch_op.tables import expanded, kept_by
from flashsmith.torch_op.tensor_view import refuse_gradients, tensor_view

Tables = Sequence[Tensor | None]  # in the order of `TABLE_ORDER`
_NO_TABLES: Tables = ()
_NO_MORE: Mapping[str, Tensor] = {}
_BIAS = TABLE_ORDER.index(BIAS)
_UNALIGNED = 15  # the bits of an address that are 0 at a multiple of 16 bytes


@dataclass(frozen=True, slots=True)
class TorchLaunch(Launch):
    """A launch, and what does not change between calls of equal shapes and strides."""

    ordinal: int = 0
    empty_output: Callable[[Tensor], Tensor] = empty_output  # of q
    # Of one element each: `empty_like` of them is quicker than `new_empty` or `empty`.
    lse_like: Tensor | None = None
    scratch_like: Tensor | None = None
    is_direct: bool = True  # there is something to launch, and no input is copied before


def forward(q: Tensor, k: Tensor, v: Tensor, *given: Argument) -> Tensor:
    """Attention of tensors on a GPU, in torch's current stream."""
    launch = _launch_of(q, k, v, False, given)
    out = launch.empty_output(q)
    _start(launch, q, k, v, out, None)
    return out


def forward_lse(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *given: Argument,
) -> tuple[Tensor, Tensor]:
    """The same, and the log-sum-exp."""
    launch = _launch_of(q, k, v, True, given)
    out, lse = launch.empty_output(q), torch.empty_like(launch.lse_like)
    _start(launch, q, k, v, out, lse)
    return out, lse


def forward_out(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor | None,
    *given: Argument,
) -> None:
    """The same into `out`, and `lse` if given."""
    launch = _launch_of(q, k, v, lse is not None, given)
    views = [tensor_view(name, tensor) for name, tensor in zip("qkv", (q, k, v), strict=True)]
    require_out_fits(tensor_view("out", out), views)
    _start_on_copies(launch, (q, k, v), out, lse, current_stream(launch.ordinal))


def forward_with(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    tables: list[Tensor | None],
    lse: bool,
    *given: Argument,
) -> tuple[Tensor, Tensor]:
    """The same of a call with tables; an LSE without elements where none is asked for."""
    whole = _with_bias(tables, q, k, given)
    return run_with(_launch_with(q, k, v, whole, lse, given), q, k, v, whole, lse)


def forward_cache(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    k_lengths: Tensor,
    block_table: Tensor | None,
    *given: Argument,
) -> Tensor:
    """The output alone of a call on a cache."""
    tables = (k_lengths,) if block_table is None else (k_lengths, block_table)
    launch = _launch_with(q, k, v, tables, False, given)
    out = launch.empty_output(q)
    _start(launch, q, k, v, out, None, tables)
    return out


def run_with(
    launch: TorchLaunch, q: Tensor, k: Tensor, v: Tensor, tables: Tables, lse: bool
) -> tuple[Tensor, Tensor]:
    """What `forward_with` returns, by a launch of such tensors."""
    out = launch.empty_output(q)
    # Without elements it is the same one every time: there is nothing in it to be shared.
    of_rows = torch.empty_like(launch.lse_like) if lse else launch.lse_like
    _start(launch, q, k, v, out, of_rows if lse else None, tables)
    return out, of_rows


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
    """The same into `out` and `lse`, with `workspace` as scratch: nothing is allocated."""
    whole = _with_bias(tables, q, k, given)
    launch = _launch_with(q, k, v, whole, lse is not None, given)
    views = [tensor_view(name, tensor) for name, tensor in zip("qkv", (q, k, v), strict=True)]
    of_tables = by_name(whole)
    read = {name: tensor_view(name, table) for name, table in of_tables.items()}
    of_out = tensor_view("out", out)
    require_out_fits(of_out, views, read)
    more: Mapping[str, Tensor] = of_tables
    if workspace is not None:
        needed, others = launch.prepared.scratch_bytes, (*views, of_out, *read.values())
        require_room(tensor_view("workspace", workspace), needed, views[0].device, others)
        more = {**of_tables, SCRATCH: workspace}
    _start_on_copies(launch, (q, k, v), out, lse, current_stream(launch.ordinal), more)


def _with_bias(tables: Tables, q: Tensor, k: Tensor, given: Given) -> Tables:
    """The tables of a call; a bias has an element a score."""
    if len(tables) <= _BIAS or tables[_BIAS] is None:
        return tables
    whole = expanded(by_name(tables), q, k, layout_of(given))
    return [whole.get(name) for name in TABLE_ORDER[: len(tables)]]


def key_with(
    q: Tensor, k: Tensor, v: Tensor, tables: Tables, lse: bool, given: Hashable
) -> Hashable:
    """What the launch of a call with tables follows from."""
    # A device is told by its number: on another kind of device tensors lie elsewhere, and what lies
    # where nothing did before is looked at.
    # fmt: off
    of_rows = (
        q.shape, k.shape, v.shape, q.stride(), k.stride(), v.stride(), q.dtype, k.dtype, v.dtype,
        q.get_device(), k.get_device(), v.get_device(), lse, given,
    )
    # fmt: on
    # The lengths of a decode step, in half of the time.
    if len(tables) == 1 and (first := tables[0]) is not None:
        return of_rows, first.shape, first.stride(), first.dtype, first.get_device()
    of_tables: list[Hashable] = [
        t if t is None else (t.shape, t.stride(), t.dtype, t.get_device()) for t in tables
    ]
    bias = tables[_BIAS] if len(tables) > _BIAS else None
    if bias is not None:
        of_tables.append(begins_of(bias))
    return of_rows, tuple(of_tables)


def _launch_with(
    q: Tensor, k: Tensor, v: Tensor, tables: Tables, lse: bool, given: Given
) -> TorchLaunch:
    """The launch of a call with tables."""
    if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
        refuse_gradients({"q": q, "k": k, "v": v})
    key = key_with(q, k, v, tables, lse, given)
    found = KEPT_LAUNCHES.get(key)
    if found is None:
        found = _new_launch(key, q, k, v, lse, given, by_name(tables))
    return found  # type: ignore[return-value]  # under such a key there is no other kind


def begins_of(bias: Tensor) -> int:
    """How a bias begins decides whether its keys are read by pairs."""
    return int(bias.data_ptr()) & _UNALIGNED


forward_kept = kept_by(forward_with)


def _launch_of(q: Tensor, k: Tensor, v: Tensor, lse: bool, given: Given) -> TorchLaunch:
    """The launch for tensors of these shapes, strides, types and devices."""
    if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
        refuse_gradients({"q": q, "k": k, "v": v})
    # fmt: off
    key = (
        q.shape, k.shape, v.shape, q.stride(), k.stride(), v.stride(), q.dtype, k.dtype, v.dtype,
        q.get_device(), k.get_device(), v.get_device(), lse, given,
    )
    # fmt: on
    found = KEPT_LAUNCHES.get(key)
    if found is None:
        found = _new_launch(key, q, k, v, lse, given, {})
    return found  # type: ignore[return-value]  # under such a key there is no other kind


def _new_launch(
    key: Hashable,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lse: bool,
    given: Given,
    tables: Mapping[str, Tensor],
) -> Launch:
    # Apart from its callers: variables that a lambda refers to are slower in every call.
    return kept_launch(key, lambda: _make_launch(q, k, v, lse, given, tables))


def _make_launch(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lse: bool,
    given: Given,
    tables: Mapping[str, Tensor],
) -> TorchLaunch:
    options = options_of(given, lse=lse)
    views = [tensor_view(name, tensor) for name, tensor in zip("qkv", (q, k, v), strict=True)]
    problem = problem_of(views, options, {n: tensor_view(n, t) for n, t in tables.items()})
    launch = launch_for(gpu_device(views[0], options.backend), problem, options, views)
    copies = any(replace(view, address=0).obstacle() for view in views)
    return TorchLaunch(
        choice=launch.choice,
        prepared=launch.prepared,
        until=launch.until,
        ordinal=q.get_device(),
        empty_output=_maker_of_outputs(q, problem),
        lse_like=_lse_like(q, problem.layout) if lse else no_lse(q),
        scratch_like=q.new_empty((), dtype=torch.uint8).expand(launch.prepared.scratch_bytes),
        is_direct=bool(launch.prepared.steps) and not copies,
    )


def _maker_of_outputs(q: Tensor, problem: AttentionProblem) -> Callable[[Tensor], Tensor]:
    """What makes an output for a tensor such as q, the quickest way there is."""
    if problem.d_v:
        return lambda like: empty_output(like[..., : problem.d_v])
    return torch.empty_like if torch.empty_like(q).stride(3) == 1 else empty_output


def _lse_like(q: Tensor, layout: str) -> Tensor:
    """A tensor with the shape of the log-sum-exp that takes the memory of one number."""
    shape = empty_lse(q.to("meta"), layout).shape
    return q.new_empty((), dtype=torch.float32).expand(shape)


def _start(
    launch: TorchLaunch,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor | None,
    tables: Tables = _NO_TABLES,
) -> None:
    """Launches into an output that `empty_output` made: its strides follow from those of q."""
    stream = current_stream(launch.ordinal)
    prepared = launch.prepared
    at: tuple[int, ...] = (q.data_ptr(), k.data_ptr(), v.data_ptr(), out.data_ptr())
    if lse is not None:
        at = (*at, lse.data_ptr())
    if tables:
        at = (*at, *[table.data_ptr() for table in tables if table is not None])
    scratch = None
    if prepared.scratch_bytes:
        scratch = _scratch(launch)
        at = (*at, scratch.data_ptr())
    if launch.is_direct and prepared.start_again(at, stream):
        return
    if not launch.is_direct or (at[0] | at[1] | at[2]) & _UNALIGNED:
        _start_on_copies(launch, (q, k, v), out, lse, stream, by_name(tables))
    else:
        # Strides are those of the launch: addresses say the rest.
        more = by_name(tables) if scratch is None else {**by_name(tables), SCRATCH: scratch}
        prepared.start_first(at, _call(launch, (q, k, v), out, lse, more), stream)


def _scratch(launch: TorchLaunch) -> Tensor:
    """Memory in which a plan's ctas and launches hand results over, from torch's allocator."""
    return torch.empty_like(launch.scratch_like)


def _call(
    launch: TorchLaunch,
    inputs: tuple[Tensor, Tensor, Tensor],
    out: Tensor,
    lse: Tensor | None,
    more: Mapping[str, Tensor],  # tables and scratch
) -> Call:
    named = [*zip("qkvo", (*inputs, out), strict=True)] + ([] if lse is None else [("lse", lse)])
    named += more.items()
    views = [tensor_view(name, tensor) for name, tensor in named]
    return call_of(views, launch.prepared.problem.layout)


def _start_on_copies(
    launch: TorchLaunch,
    tensors: tuple[Tensor, Tensor, Tensor],
    out: Tensor,
    lse: Tensor | None,
    stream: int,
    tables: Mapping[str, Tensor] = _NO_MORE,  # and scratch that the caller brings
) -> None:
    """Launches on the tensors, or on contiguous copies of what no kernel can read in place."""
    readable = []
    for name, tensor in zip("qkv", tensors, strict=True):
        view = tensor_view(name, tensor)
        obstacle = view.obstacle()
        if obstacle:
            say_copy(view, obstacle)
        # Kept until the launch is queued: torch reuses memory in the order of its stream.
        copied = tensor.clone(memory_format=torch.contiguous_format) if obstacle else tensor
        readable.append(copied)
    q, k, v = readable
    more = tables
    if launch.prepared.scratch_bytes and SCRATCH not in tables:
        more = {**tables, SCRATCH: _scratch(launch)}
    launch.prepared(_call(launch, (q, k, v), out, lse, more), stream)


def _public_stream(ordinal: int) -> int:
    return int(torch.cuda.current_stream(ordinal).cuda_stream)


# What code generated by torch.compile calls, too: a tenth of the cost of the public way.
current_stream = getattr(torch._C, "_cuda_getCurrentRawStream", _public_stream)
