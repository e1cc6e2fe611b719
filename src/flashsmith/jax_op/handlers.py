"""What XLA calls: attention and its gradients on buffers of a GPU, or on arrays of the host.

Of the host's arrays JAX calls back, and awaits the end of such calls when a process ends; on a GPU
XLA calls the handlers itself, as it launches kernels.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flashsmith.api import gpu_call, host_call
from flashsmith.api.array_view import ArrayView, compact
from flashsmith.api.arrays.library import Array
from flashsmith.api.arrays.numpy_arrays import LIBRARY as NUMPY
from flashsmith.api.options import LSE
from flashsmith.base.errors import Unsupported
from flashsmith.jax_op.asked import Asked, read_asked
from flashsmith.jax_op.call_frame import Buffer, CallFrame, handler_of
from flashsmith.runtime.devices import current_gpu

FORWARD, BACKWARD = "flashsmith_forward", "flashsmith_backward"
ASKED = "asked"  # the name of the text that a call is made with
ROWS = ("q", "k", "v")
KEPT = (*ROWS, "o", "lse", "do")  # of a backward call, in the order of its arguments
_read = lru_cache(maxsize=1024)(read_asked)


class _Named(NamedTuple):
    """The arguments of a call by their names."""

    asked: Asked
    rows: dict[str, Buffer]
    tables: dict[str, Buffer]


def _names(asked: Asked, rows: tuple[str, ...], count: int) -> tuple[str, ...]:
    """The names of so many arrays: behind the rows there may be the gradient of the LSE."""
    has_dlse = count == len(rows) + 1 + len(asked.tables)
    return (*rows, *(("dlse",) if has_dlse else ()), *asked.tables)


def _named(frame: CallFrame, rows: tuple[str, ...]) -> _Named:
    asked, arguments = _read(frame.text(ASKED)), frame.arguments()
    names = _names(asked, rows, len(arguments))
    named = dict(zip(names, arguments, strict=True))
    tables = {name: named.pop(name) for name in asked.tables}
    return _Named(asked, named, tables)


class _OnGpu:
    """The buffers of one call as a library of arrays: what is new is a result, or scratch."""

    orders_by_stream = True

    def __init__(self, frame: CallFrame) -> None:
        self._frame = frame
        self._results = frame.results()
        self._device = f"cuda:{current_gpu()}"  # XLA has made the GPU of a call the current one

    def require_usable(self, name: str, array: Array) -> None:
        """Buffers of XLA's are as they have to be."""

    def view(self, name: str, array: Array) -> ArrayView:
        """Where a buffer lies."""
        strides = compact(array.shape)
        return ArrayView(name, array.shape, strides, array.dtype, array.address, self._device)

    def stream(self, array: Array) -> int:
        """That of the call."""
        return self._frame.stream()

    def compacted(self, array: Array) -> Array:
        """Raises: buffers are contiguous, and XLA aligns them."""
        raise Unsupported(f"XLA put an array of shape {array.shape} at {array.address:#x}.")

    def new(self, like: Array, shape: tuple[int, ...], dtype: str) -> Array:
        """The next result of the call; behind the last one, scratch memory."""
        if not self._results:
            n_bytes = int(np.prod(shape)) * self.view("", Buffer(shape, dtype, 0)).element_bytes
            return Buffer(shape, dtype, self._frame.allocate(n_bytes))
        result = self._results.pop(0)
        if (result.shape, result.dtype) != (shape, dtype):
            raise Unsupported(
                f"a result of the call is {result.dtype} {result.shape}, and kernels write {dtype} "
                f"{shape}; it was traced by another version of flashsmith."
            )
        return result


def forward_on_gpu(frame: CallFrame) -> None:
    """O, and the log-sum-exp where it is asked for."""
    asked, rows, tables = _named(frame, ROWS)
    arrays = (rows["q"], rows["k"], rows["v"])
    gpu_call.attend(_OnGpu(frame), arrays, None, asked.options, tables)


def backward_on_gpu(frame: CallFrame) -> None:
    """dQ, dK and dV, and dBias where it is asked for."""
    asked, rows, tables = _named(frame, KEPT)
    gpu_call.differentiate(_OnGpu(frame), rows, asked.options, tables=tables, of_bias=asked.dbias)


# By name; kept for as long as XLA may call them.
HANDLERS = {FORWARD: handler_of(forward_on_gpu), BACKWARD: handler_of(backward_on_gpu)}


def forward_on_host(text: str, *arrays: Array) -> tuple[Array, ...]:
    """(O,), or (O, LSE), of arrays in the host's memory."""
    asked = _read(text)
    named = _host_arrays(asked, ROWS, arrays)
    tables = {name: named[name] for name in asked.tables}
    rows = (named["q"], named["k"], named["v"])
    o, lse, _ = host_call.attend(NUMPY, rows, None, asked.options, tables)
    return (o, lse) if asked.options.facts[LSE] else (o,)


def backward_on_host(text: str, *arrays: Array) -> tuple[Array, ...]:
    """The same of arrays in the host's memory."""
    asked = _read(text)
    named = _host_arrays(asked, KEPT, arrays)
    tables = {name: named.pop(name) for name in asked.tables}
    found, _ = host_call.differentiate(
        NUMPY, named, asked.options, tables=tables, of_bias=asked.dbias
    )
    return tuple(found)


def _host_arrays(
    asked: Asked, rows: tuple[str, ...], arrays: tuple[Array, ...]
) -> dict[str, NDArray[Any]]:
    names = _names(asked, rows, len(arrays))
    return {name: np.asarray(array) for name, array in zip(names, arrays, strict=True)}


ON_HOST = {FORWARD: forward_on_host, BACKWARD: backward_on_host}
