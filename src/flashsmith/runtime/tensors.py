"""The tensors of one forward call: their shapes, and memory for them on a device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flashsmith.base.dtypes import DType
from flashsmith.kernels.launch import ForwardCall, TensorArg
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.reference import shape_in_layout
from flashsmith.runtime.device import Device

# A NaN that no arithmetic makes: an element that still holds it was never written.
POISON = {DType.FP16: 0x7E5A, DType.BF16: 0x7FDA}
LSE_POISON = 0x7FC5A5A5


def tensor_shapes(problem: AttentionProblem) -> dict[str, tuple[int, int, int, int]]:
    """The shapes of q, k, v and o in the problem's layout."""
    queries = shape_in_layout(problem, problem.heads, problem.q_len)
    keys = shape_in_layout(problem, problem.kv_heads, problem.k_len)
    return {"q": queries, "k": keys, "v": keys, "o": queries}


def lse_shape(problem: AttentionProblem) -> tuple[int, int, int]:
    """The shape of the log-sum-exp, in every layout."""
    return (problem.batch, problem.heads, problem.q_len)


def tensor_arg(address: int, array: NDArray[Any], layout: str) -> TensorArg:
    """Where an array's elements lie once its bytes are at `address`."""
    batch, first, second, _ = (stride // array.itemsize for stride in array.strides)
    seq, head = (first, second) if layout == "bshd" else (second, first)
    return TensorArg(address, batch, seq, head)


@contextmanager
def tensors_on(
    device: Device,
    problem: AttentionProblem,
    inputs: dict[str, NDArray[Any]],
    *,
    lse: bool,
) -> Iterator[ForwardCall]:
    """A call on contiguous copies of q, k and v, with a poisoned output; freed at the end."""
    held = {name: np.ascontiguousarray(inputs[name]) for name in ("q", "k", "v")}
    held["o"] = np.full(tensor_shapes(problem)["o"], POISON[problem.dtype], np.uint16)
    if lse:
        held["lse"] = np.full(lse_shape(problem), LSE_POISON, np.uint32)
    addresses: dict[str, int] = {}
    try:
        for name, array in held.items():
            addresses[name] = device.allocate(array.nbytes)
            device.upload(addresses[name], array)
        q, k, v, o = (
            tensor_arg(addresses[name], held[name], problem.layout) for name in ("q", "k", "v", "o")
        )
        yield ForwardCall(q, k, v, o, addresses.get("lse", 0))
    finally:
        for address in addresses.values():
            device.free(address)
