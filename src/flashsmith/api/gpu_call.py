"""Attention on arrays that lie on a GPU: launched where they are, in their library's stream."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from typing import cast

from flashsmith.api.array_view import ArrayView, compact
from flashsmith.api.arrays import JAX, origin
from flashsmith.api.arrays.library import Array, ArrayLibrary, GpuArrays
from flashsmith.api.bias import broadcast_view, scores_shape
from flashsmith.api.launches import call_of, explained, gpu_device, launch_for, say_copy
from flashsmith.api.options import CallOptions
from flashsmith.api.problems import (
    gradient_problem_of,
    problem_of,
    require_out_fits,
    require_room,
)
from flashsmith.api.tables import NO_TABLES, ArrayTables, rows_of_tables
from flashsmith.kernels.launch import SCRATCH
from flashsmith.problem.signature import BIAS
from flashsmith.tuner.choose.choice import Choice


def attend(
    library: ArrayLibrary,
    arrays: tuple[Array, Array, Array],
    out: Array,
    options: CallOptions,
    tables: ArrayTables = NO_TABLES,
    explain: bool = False,
    workspace: Array = None,
) -> tuple[Array, Array, Choice]:
    """Output, log-sum-exp (or None) and choice, for arrays of `library` on a GPU."""
    gpu = cast(GpuArrays, library)
    views = [gpu.view(name, array) for name, array in zip("qkv", arrays, strict=True)]
    tables = _of_every_sequence(tables, views[0].shape[0])
    table_views = _views_of(gpu, tables, views[0], views[1], options)
    problem = problem_of(views, options, table_views)
    if out is None:
        out = gpu.new(arrays[0], (*views[0].shape[:3], problem.v_width), views[0].dtype)
    else:
        require_out_fits(gpu.view("out", out), views, table_views)
    device = gpu_device(views[0], options.backend)
    launch = launch_for(device, problem, options, views)
    # Copies must live until the launch is done; freeing them in stream order is the library's work.
    kept = [_readable(gpu, array, view) for array, view in zip(arrays, views, strict=True)]
    lse_shape = (problem.batch, problem.heads, problem.q_len)
    lse = gpu.new(arrays[0], lse_shape, "float32") if problem.lse else None
    placed = [view for _, view in kept] + [replace(gpu.view("out", out), name="o")]
    placed += [gpu.view("lse", lse)] if problem.lse else []
    placed += table_views.values()
    needed = launch.prepared.scratch_bytes
    if workspace is not None:
        others = (*views, gpu.view("out", out), *table_views.values())
        require_room(gpu.view("workspace", workspace), needed, views[0].device, others)
        placed.append(gpu.view(SCRATCH, workspace))
    elif needed:
        scratch = gpu.new(arrays[0], (needed // 4,), "float32")
        placed.append(gpu.view(SCRATCH, scratch))
    call, stream = call_of(placed, problem.layout), gpu.stream(arrays[0])
    launch.prepared(call, stream)
    if not gpu.orders_by_stream:
        device.synchronize()
    return out, lse, explained(launch, call, stream) if explain else launch.choice


def differentiate(
    library: ArrayLibrary,
    arrays: Mapping[str, Array],
    options: CallOptions,
    explain: bool = False,
    tables: ArrayTables = NO_TABLES,
    of_bias: bool = False,
) -> tuple[list[Array], Choice]:
    """dq, dk and dv, and the choice, for arrays of `library` on a GPU.

    With `of_bias` the gradient of the bias behind them, as the kernels write it: see `api.bias`.
    """
    gpu = cast(GpuArrays, library)
    views = {name: gpu.view(name, array) for name, array in arrays.items()}
    tables = _of_every_sequence(tables, views["q"].shape[0])
    table_views = _views_of(gpu, tables, views["q"], views["k"], options)
    shape = tuple(tables[BIAS].shape) if of_bias else None
    problem = gradient_problem_of(views, options, table_views, shape)
    device = gpu_device(views["q"], options.backend)
    launch = launch_for(device, problem, options, list(views.values()))
    kept = [_readable(gpu, array, views[name]) for name, array in arrays.items()]
    made = {
        f"d{name}": gpu.new(arrays[name], views[name].shape, views[name].dtype) for name in "qkv"
    }
    if of_bias:
        shape = (problem.bias_sequences, problem.bias_heads, problem.q_len, problem.k_len)
        made["dbias"] = gpu.new(arrays["q"], shape, "float32")
    names = tuple(made)
    if launch.prepared.scratch_bytes:
        words = (launch.prepared.scratch_bytes // 4,)
        made[SCRATCH] = gpu.new(arrays["q"], words, "float32")
    placed = [view for _, view in kept] + [gpu.view(name, array) for name, array in made.items()]
    placed += table_views.values()
    call, stream = call_of(placed, problem.layout), gpu.stream(arrays["q"])
    launch.prepared(call, stream)
    if not gpu.orders_by_stream:
        device.synchronize()
    choice = explained(launch, call, stream) if explain else launch.choice
    return [made[name] for name in names], choice


def _views_of(
    gpu: GpuArrays, tables: ArrayTables, q: ArrayView, k: ArrayView, options: CallOptions
) -> dict[str, ArrayView]:
    """Where tables lie; a bias with an element a score."""
    views = {name: gpu.view(name, array) for name, array in tables.items()}
    if BIAS in views:
        wanted = scores_shape(q.shape, k.shape, str(options.fact("layout")))
        views[BIAS] = broadcast_view(views[BIAS], wanted)
    return views


def _of_every_sequence(tables: ArrayTables, batch: int) -> ArrayTables:
    """The same with slopes for each sequence, where they are those of all heads."""
    slopes = tables.get("alibi_slopes")
    if slopes is None or len(slopes.shape) != 1:
        return tables
    module = import_module("jax.numpy" if origin(slopes) in JAX else origin(slopes))
    rows = rows_of_tables(tables, batch)
    of_all = module.broadcast_to(slopes, (rows, *slopes.shape)).copy()
    return {**tables, "alibi_slopes": of_all}


def _readable(gpu: GpuArrays, array: Array, view: ArrayView) -> tuple[Array, ArrayView]:
    """The array, or a contiguous copy (said once) where no kernel can read it where it is."""
    if len(view.shape) != 4:  # a number a row
        is_compact = view.strides == compact(view.shape)
        obstacle = "" if is_compact else "it is not contiguous"
    else:
        obstacle = view.obstacle()
    if not obstacle:
        return array, view
    say_copy(view, obstacle)
    array = gpu.compacted(array)
    return array, gpu.view(view.name, array)
