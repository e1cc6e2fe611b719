"""From the shapes of q, k and v to the problem they pose; every mismatch is refused by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from flashsmith.api.array_view import ALIGNED_BYTES, LINE_BYTES, ArrayView
from flashsmith.api.bias import shared_by_shape
from flashsmith.api.options import CallOptions
from flashsmith.api.tables import TableViews, pages_of_a_sequence, sequences_in, with_tables
from flashsmith.base.dtypes import DType
from flashsmith.base.errors import ArgumentError, ArgumentTypeError
from flashsmith.kernels.width import (
    D_HEAD_STEP,
    MAX_D_HEAD,
    require_one_width,
    require_paged_width,
    require_trained_width,
    require_width,
)
from flashsmith.problem.attention import LAYOUTS, AttentionProblem

# float32 is what models have that were loaded without a word about it.
_OF_A_MODEL = " (load a torch model with dtype=torch.bfloat16, or call it under torch.autocast)"


_NO_TABLES: TableViews = {}


def problem_of(
    views: Sequence[ArrayView], options: CallOptions, tables: TableViews = _NO_TABLES
) -> AttentionProblem:
    """The problem that q, k and v, the options and the tables of a call pose."""
    q, k, v = views
    dtype = _common_dtype(q, k, v)
    _require_one_device(q, k, v)
    layout = options.fact("layout")
    for view in (q, k, v):
        _require_four_dimensions(view, layout)
    bshd = [view.in_bshd(layout) for view in (q, k, v)]
    table = tables.get("block_table")
    _require_matching_shapes(*bshd, in_pages=table is not None)
    batch, q_len, heads, d_head = bshd[0].shape
    _, k_len, kv_heads, _ = bshd[1].shape
    if table is not None:
        k_len *= pages_of_a_sequence(table, sequences_in(tables, batch))
    problem = AttentionProblem(
        batch=batch,
        heads=heads,
        kv_heads=kv_heads,
        q_len=q_len,
        k_len=k_len,
        d_head=d_head,
        dtype=dtype,
        d_v=bshd[2].shape[3] if bshd[2].shape[3] != d_head else 0,
        **{**options.given(), "deterministic": True},  # as every forward pass is
    )
    _require_one_device(q, *tables.values())
    pool = (bshd[1].shape[0], bshd[1].shape[1]) if table is not None else (0, 0)
    return with_tables(problem, tables, pool)


def gradient_problem_of(
    views: Mapping[str, ArrayView],
    options: CallOptions,
    tables: TableViews = _NO_TABLES,
    of_bias: tuple[int, ...] | None = None,
) -> AttentionProblem:
    """The problem of a backward call, from the views of its inputs by the signature's names.

    `of_bias` is the shape of the bias as it was given, where its gradient is wanted too.
    """
    q = views["q"]
    require_trained_width(q.shape[-1])
    forward = problem_of([q, views["k"], views["v"]], options.with_fact("lse", False), tables)
    for name in ("o", "do"):
        view = views[name]
        if view.shape != q.shape:
            raise ArgumentError(
                f"{name} has shape {view.shape} and q {q.shape}; they must be equal."
            )
        if view.dtype != q.dtype:
            raise ArgumentTypeError(
                f"{name} is {view.dtype} and q is {q.dtype}; convert {name} to the type of q."
            )
    wanted = (forward.batch, forward.heads, forward.q_len)
    for view in (views[name] for name in ("lse", "dlse") if name in views):
        if view.dtype != "float32":
            raise ArgumentTypeError(
                f"{view.name} is {view.dtype}; it must be float32, as the log-sum-exp of "
                f"flash_attention(return_lse=True)."
            )
        if view.shape != wanted:
            raise ArgumentError(
                f"{view.name} has shape {view.shape}; it must be {wanted}: (batch, heads, queries)."
            )
    _require_one_device(q, *(view for name, view in views.items() if name != "q"))
    free = {"deterministic": options.fact("deterministic")}
    problem = replace(forward, operation="backward", dlse="dlse" in views, **free)
    if of_bias is None:
        return problem
    return replace(problem, dbias=True, bias_shared=shared_by_shape(of_bias))


def require_out_fits(
    out: ArrayView, inputs: Sequence[ArrayView], tables: TableViews = _NO_TABLES
) -> None:
    """Raises unless the output can be written where the caller wants it."""
    q, v = inputs[0], inputs[2]
    wanted = (*q.shape[:3], v.shape[3])
    if out.shape != wanted:
        like = f"q {q.shape}" if wanted == q.shape else f"q and v make {wanted}"
        raise ArgumentError(f"out has shape {out.shape} and {like}; they must be equal.")
    if out.dtype != q.dtype:
        raise ArgumentTypeError(f"out is {out.dtype} and q is {q.dtype}; they must be equal.")
    if out.device != q.device:
        raise ArgumentError(f"out is on {out.device} and q on {q.device}; put them on one device.")
    if any(n > 1 and s == 0 for n, s in zip(out.shape, out.strides, strict=True)):
        raise ArgumentError("out has a stride of 0 (it is expanded); pass memory of its own.")
    obstacle = out.obstacle()
    if obstacle:
        raise ArgumentError(f"out cannot be written in place: {obstacle}; pass a contiguous one.")
    if out.overlaps_itself():
        raise ArgumentError(
            f"out has strides {out.strides}, at which its rows overlap; pass a contiguous one."
        )
    _require_apart(out, (*inputs, *tables.values()))


def _require_apart(written: ArrayView, read: Iterable[ArrayView]) -> None:
    for view in read:
        if written.overlaps(view):
            name = written.name
            raise ArgumentError(
                f"{name} overlaps {view.name} in memory, which is still read while {name} is "
                f"written; pass memory of its own."
            )


def require_room(
    workspace: ArrayView, needed: int, device: str, others: Iterable[ArrayView] = ()
) -> None:
    """Raises unless scratch memory of the caller's will do for a call that needs so many bytes.

    `others` are what the call reads and writes beside it.
    """
    if workspace.dtype != "uint8" or len(workspace.shape) != 1:
        raise ArgumentTypeError(
            f"workspace is {workspace.dtype} of shape {workspace.shape}; it must be bytes: uint8, "
            f"one dimension."
        )
    if workspace.device != device:
        raise ArgumentError(
            f"workspace is on {workspace.device} and q on {device}; put them on one device."
        )
    if workspace.shape[0] < needed:
        raise ArgumentError(
            f"workspace has {workspace.shape[0]:,} bytes and this call needs {needed:,}; pass at "
            f"least as many as flashsmith.workspace_bytes says."
        )
    # Of the host's memory nothing is used: arrays there are copied to the device.
    alignment = ALIGNED_BYTES if device == "cpu" else LINE_BYTES
    if needed and (workspace.address % alignment or workspace.strides[0] != 1):
        raise ArgumentError(
            f"workspace begins at {workspace.address:#x} with a stride of {workspace.strides[0]}; "
            f"pass bytes without gaps from a multiple of {alignment} on."
        )
    if needed:
        _require_apart(workspace, others)


def _common_dtype(q: ArrayView, k: ArrayView, v: ArrayView) -> DType:
    dtype = DType.of(q.dtype)
    if dtype is None:
        raise ArgumentTypeError(
            f"q is {q.dtype}; the kernels take float16 and bfloat16; convert q, k and v first"
            f"{_OF_A_MODEL if q.dtype == 'float32' else ''}."
        )
    for view in (k, v):
        if view.dtype != q.dtype:
            raise ArgumentTypeError(
                f"q is {q.dtype} and {view.name} is {view.dtype}; convert them to one type."
            )
    return dtype


def _require_one_device(q: ArrayView, *others: ArrayView) -> None:
    for view in others:
        if view.device != q.device:
            raise ArgumentError(
                f"q is on {q.device} and {view.name} on {view.device}; put them on one device."
            )


def _require_four_dimensions(view: ArrayView, layout: str) -> None:
    if len(view.shape) != 4:
        raise ArgumentError(
            f"{view.name} has {len(view.shape)} dimensions, shape {view.shape}; layout {layout!r} "
            f"has four, {LAYOUTS[layout]}; add the missing ones with [None]."
        )


def _require_matching_shapes(q: ArrayView, k: ArrayView, v: ArrayView, *, in_pages: bool) -> None:
    if in_pages and k.shape[0] != v.shape[0]:
        raise ArgumentError(f"k has {k.shape[0]} pages and v has {v.shape[0]}; they must be equal.")
    for view in () if in_pages else (k, v):
        if view.shape[0] != q.shape[0]:
            raise ArgumentError(
                f"q has batch {q.shape[0]} and {view.name} has {view.shape[0]}; they must be equal."
            )
    if k.shape[1] != v.shape[1]:
        raise ArgumentError(
            f"k has {k.shape[1]} keys and v has {v.shape[1]} values; they must be equal."
        )
    if k.shape[2] != v.shape[2]:
        raise ArgumentError(f"k has {k.shape[2]} heads and v has {v.shape[2]}; they must be equal.")
    if k.shape[3] != q.shape[3]:
        raise ArgumentError(
            f"q has d_head {q.shape[3]} and k has {k.shape[3]}; they must be equal."
        )
    of_q, of_v = q.shape[3], v.shape[3]
    if not (0 < of_v < of_q <= MAX_D_HEAD and of_v % D_HEAD_STEP == 0 and not in_pages):
        require_one_width(of_q, of_v)
    _require_heads_and_width(q.shape[2], k.shape[2], of_q)
    if in_pages:
        require_paged_width(of_q)


def _require_heads_and_width(heads: int, kv_heads: int, d_head: int) -> None:
    if heads and (kv_heads == 0 or heads % kv_heads):
        raise ArgumentError(
            f"q has {heads} heads and k has {kv_heads}; the heads of q must be a multiple of those "
            f"of k."
        )
    # A narrower one that is no multiple of 8 was padded before; the operators of torch do not.
    can_pad = d_head <= MAX_D_HEAD
    advice = "call flash_attention, which pads" if can_pad else "use another implementation"
    require_width(d_head, advice)
