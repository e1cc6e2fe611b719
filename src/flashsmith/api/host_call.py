"""Attention on arrays in the host's memory: up to the device, one launch, and back."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from flashsmith.api.array_view import ArrayView
from flashsmith.api.arrays.library import Array, ArrayLibrary, HostArrays
from flashsmith.api.launches import Launch, forward_call, host_device, launch_for
from flashsmith.api.options import CallOptions
from flashsmith.api.problems import problem_of, require_out_fits
from flashsmith.problem.attention import AttentionProblem
from flashsmith.runtime.device import Device
from flashsmith.tuner.choose.choice import Choice

Bits = NDArray[np.uint16]


def attend(
    library: ArrayLibrary, arrays: tuple[Array, Array, Array], out: Array, options: CallOptions
) -> tuple[Array, Array, Choice]:
    """Output, log-sum-exp (or None) and choice, for arrays of `library` in the host's memory."""
    host = cast(HostArrays, library)
    views = [host.view(name, array) for name, array in zip("qkv", arrays, strict=True)]
    problem = problem_of(views, options)
    if out is not None:
        require_out_fits(host.view("out", out), views)
    device = host_device(options.backend)
    bits = [host.bits(array) for array in arrays]
    o, lse, choice = attend_bits(device, problem, bits, options)
    result = host.from_bits(o, arrays[0])
    if out is not None:
        host.bits(out)[...] = o
        result = out
    return result, None if lse is None else host.from_float32(lse), choice


def attend_bits(
    device: Device, problem: AttentionProblem, inputs: list[Bits], options: CallOptions
) -> tuple[Bits, NDArray[np.float32] | None, Choice]:
    """The same on 16-bit patterns of any strides, in the problem's layout."""
    inputs = [_compacted(bits) for bits in inputs]
    launch = launch_for(device, problem, options, [_view(bits) for bits in inputs])
    lse_shape = (problem.batch, problem.heads, problem.q_len)
    if launch.start is None:
        o = np.zeros(inputs[0].shape, np.uint16)
        lse = np.full(lse_shape, -np.inf, np.float32) if options.return_lse else None
        return o, lse, launch.choice
    return (
        *_run(device, launch, [_compacted(b) for b in inputs], lse_shape, options),
        launch.choice,
    )


def _run(
    device: Device,
    launch: Launch,
    inputs: list[Bits],
    lse_shape: tuple[int, ...],
    options: CallOptions,
) -> tuple[Bits, NDArray[np.float32] | None]:
    assert launch.start is not None
    views = [_view(bits) for bits in inputs]
    o_shape = inputs[0].shape
    o_view = _view(np.empty(o_shape, np.uint16))
    lse_bytes = 4 * int(np.prod(lse_shape)) if options.return_lse else 0
    sizes = [2 * view.span for view in (*views, o_view)] + [lse_bytes]
    addresses = [device.allocate(size) for size in sizes]
    try:
        for address, bits, view in zip(addresses, inputs, views, strict=False):
            device.upload(address, as_strided(bits, (view.span,), (2,)))
        placed = [
            replace(view, address=address)
            for view, address in zip((*views, o_view), addresses, strict=False)
        ]
        lse_at = addresses[4] if options.return_lse else 0
        launch.start(forward_call(placed, launch.problem.layout, lse_at))
        o = device.download(addresses[3], sizes[3]).view(np.uint16).reshape(o_shape)
        if not options.return_lse:
            return o, None
        lse = device.download(addresses[4], lse_bytes).view(np.float32).reshape(lse_shape)
        return o, lse
    finally:
        for address in addresses:
            device.free(address)


def _compacted(bits: Bits) -> Bits:
    """The array, or a copy where a kernel could not read its span; it is copied up either way."""
    view = _view(bits)
    sparse = view.span > 4 * bits.size  # a thin slice of a large array: the gaps would go up too
    return np.ascontiguousarray(bits) if view.obstacle() or sparse else bits


def _view(bits: Bits) -> ArrayView:
    """The strides of an array, at address 0: where it comes to lie is chosen later."""
    strides = tuple(stride // bits.itemsize for stride in bits.strides)
    return ArrayView("", bits.shape, strides, "", 0, "cpu")
