"""Attention on arrays in the host's memory: up to the device, launched, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from flashsmith.api.array_view import ALIGNED_ELEMENTS, ArrayView
from flashsmith.api.arrays.library import Array, ArrayLibrary, HostArrays
from flashsmith.api.bias import require_broadcastable, scores_shape
from flashsmith.api.launches import explained, host_device, launch_for
from flashsmith.api.options import CallOptions
from flashsmith.api.problems import (
    gradient_problem_of,
    problem_of,
    require_out_fits,
    require_room,
)
from flashsmith.api.tables import NO_TABLES, ArrayTables, rows_of_tables, view_of_words, words_of
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.signature import BIAS, signature_of
from flashsmith.runtime.device import Device
from flashsmith.runtime.tensors import (
    Location,
    ScoresLocation,
    bits_type,
    contiguous,
    in_layout,
    uploaded,
)
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
    """Output, log-sum-exp (or None) and choice, for arrays of `library` in the host's memory.

    A workspace is held to what the call needs; the device's own memory is used.
    """
    host = cast(HostArrays, library)
    views = [host.view(name, array) for name, array in zip("qkv", arrays, strict=True)]
    words = _words(tables, views[0], views[1], options)
    problem = problem_of(views, options, {n: view_of_words(n, w) for n, w in words.items()})
    of_out = [] if out is None else [host.view("out", out)]
    read = {name: _view_in_place(name, table) for name, table in tables.items()}
    if out is not None:
        require_out_fits(of_out[0], views, read)
    device = host_device(options.backend)
    bits: dict[str, NDArray[Any]] = {
        name: host.bits(array) for name, array in zip("qkv", arrays, strict=True)
    }
    bits |= {name: _bits(table) for name, table in words.items()}
    given = None if workspace is None else _view_in_place("workspace", workspace)
    others = [*views, *of_out, *read.values()]
    found, choice = attend_bits(device, problem, bits, options, explain, given, others)
    result = host.from_bits(found["o"], arrays[0])
    if out is not None:
        host.bits(out)[...] = found["o"]
        result = out
    lse = host.from_float32(found["lse"].view(np.float32)) if problem.lse else None
    return result, lse, choice


def _words(
    tables: ArrayTables, q: ArrayView, k: ArrayView, options: CallOptions
) -> dict[str, NDArray[Any]]:
    """Each table in the type of its role; a bias with an element a score."""
    rows = rows_of_tables(tables, q.shape[0])
    words = {n: words_of(n, table, rows) for n, table in tables.items() if n != BIAS}
    if BIAS in tables:
        wanted = scores_shape(q.shape, k.shape, str(options.fact("layout")))
        words[BIAS] = _bias(tables[BIAS], wanted)
    return words


def _view_in_place(name: str, array: Array) -> ArrayView:
    """Where what is no array of rows lies."""
    words = np.asarray(array)
    return replace(view_of_words(name, words), address=words.ctypes.data)


def _bias(table: Array, wanted: tuple[int, ...]) -> NDArray[Any]:
    """A bias with an element a score; what is broadcast is the same memory."""
    numbers = np.asarray(table)
    require_broadcastable(numbers.shape, wanted)
    span = 1 + sum((n - 1) * abs(s) for n, s in zip(numbers.shape, numbers.strides, strict=True))
    # A thin slice of a large array is copied, as q is; and one that is read backwards.
    if any(stride < 0 for stride in numbers.strides) or span > 4 * numbers.nbytes:
        numbers = np.ascontiguousarray(numbers)
    return np.broadcast_to(numbers, wanted)


def _bits(table: NDArray[Any]) -> NDArray[Any]:
    """The bits of a table, or of a bias, as unsigned integers of their size; no copy."""
    return table.view({1: np.uint8, 2: np.uint16}.get(table.itemsize, np.uint32))


def differentiate(
    library: ArrayLibrary,
    arrays: Mapping[str, Array],
    options: CallOptions,
    explain: bool = False,
    tables: ArrayTables = NO_TABLES,
    of_bias: bool = False,
) -> tuple[list[Array], Choice]:
    """dq, dk and dv, and the choice, for arrays of `library` in the host's memory.

    With `of_bias` the gradient of the bias behind them, as the kernels write it: see `api.bias`.
    """
    host = cast(HostArrays, library)
    views = {name: host.view(name, array) for name, array in arrays.items()}
    words = _words(tables, views["q"], views["k"], options)
    of_tables = {name: view_of_words(name, table) for name, table in words.items()}
    shape = tuple(np.shape(tables[BIAS])) if of_bias else None
    problem = gradient_problem_of(views, options, of_tables, shape)
    bits: dict[str, NDArray[Any]] = {
        name: host.float32(array).view(np.uint32) if "lse" in name else host.bits(array)
        for name, array in arrays.items()
    }
    bits |= {name: _bits(table) for name, table in words.items()}
    device = host_device(options.backend)
    found, choice = attend_bits(device, problem, bits, options, explain)
    made = [host.from_bits(found[name], arrays["q"]) for name in ("dq", "dk", "dv")]
    made += [host.from_float32(found["dbias"].view(np.float32))] if of_bias else []
    return made, choice


def attend_bits(
    device: Device,
    problem: AttentionProblem,
    inputs: Mapping[str, NDArray[Any]],
    options: CallOptions,
    explain: bool = False,
    workspace: ArrayView | None = None,
    others: Sequence[ArrayView] = (),  # beside which the workspace lies
) -> tuple[dict[str, NDArray[Any]], Choice]:
    """The bits of every output, from bits of the inputs of any strides, in the problem's layout."""
    readable = {name: bits if name == BIAS else _compacted(bits) for name, bits in inputs.items()}
    views = [_view(name, bits) for name, bits in readable.items() if name != BIAS]
    launch = launch_for(device, problem, options, views)
    if workspace is not None:
        require_room(workspace, launch.prepared.scratch_bytes, "cpu", others)
    locations, buffers = _placed(problem, readable)
    with uploaded(device, buffers) as held:
        call = held.call(locations)
        launch.prepared(call)
        choice = explained(launch, call) if explain else launch.choice
        found = {
            role.name: held.download(role.name).reshape(role.shape(problem))
            for role in signature_of(problem).outputs(problem)
        }
    return found, choice


def _placed(
    problem: AttentionProblem, inputs: Mapping[str, NDArray[Any]]
) -> tuple[dict[str, Location], dict[str, NDArray[Any]]]:
    """Every tensor as a buffer of its own: inputs with their gaps, outputs contiguous."""
    locations: dict[str, Location] = {}
    buffers: dict[str, NDArray[Any]] = {}
    for role in signature_of(problem).of(problem):
        shape = role.shape(problem)
        if role.is_output:
            locations[role.name] = in_layout(contiguous(role.name, shape), problem)
            buffers[role.name] = np.zeros(int(np.prod(shape)), bits_type(role, problem))
            continue
        view = _view(role.name, inputs[role.name])
        if role.is_scores:
            *outer, key_stride = view.strides
            at = ScoresLocation(role.name, 0, shape, tuple(outer), key_stride)
            locations[role.name] = at
            given = inputs[role.name]
            buffers[role.name] = as_strided(given, (view.span,), (given.itemsize,))
            continue
        # The stride of a dimension with one element has no meaning; libraries put anything there.
        strides = tuple(
            s if n > 1 else ALIGNED_ELEMENTS
            for n, s in zip(shape[:-1], view.strides[:-1], strict=True)
        )
        locations[role.name] = in_layout(Location(role.name, 0, shape, strides), problem)
        given = inputs[role.name]
        buffers[role.name] = as_strided(given, (view.span,), (given.itemsize,))
    return locations, buffers


def _compacted(bits: NDArray[Any]) -> NDArray[Any]:
    """The array, or a copy where a kernel could not read its span; it is copied up either way."""
    if bits.ndim != 4:  # a number a row is contiguous
        return np.ascontiguousarray(bits)
    view = _view("", bits)
    sparse = view.span > 4 * bits.size  # a thin slice of a large array: the gaps would go up too
    return np.ascontiguousarray(bits) if view.obstacle() or sparse else bits


def _view(name: str, bits: NDArray[Any]) -> ArrayView:
    """The strides of an array, at address 0: where it comes to lie is chosen later."""
    strides = tuple(stride // bits.itemsize for stride in bits.strides)
    return ArrayView(name, bits.shape, strides, "", 0, "cpu")
