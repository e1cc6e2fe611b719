"""Where a case's tensors lie in memory, with canaries before, behind and between their rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from flashsmith.base.errors import ArgumentError
from flashsmith.check.cases import Case
from flashsmith.kernels.launch import TensorArg
from flashsmith.problem.attention import AttentionProblem
from flashsmith.runtime.tensors import LSE_POISON, POISON

MARGIN = 128  # elements before and behind the tensors of a buffer
PLACEMENTS = ("contiguous", "padded", "transposed", "packed")
_CANARY_XOR = 0x0003  # a canary is a NaN too (a read of it spoils the output), but not the poison


@dataclass(frozen=True, slots=True)
class Place:
    """A tensor indexed (batch, row, head, d) inside a buffer; everything counts elements."""

    buffer: str
    offset: int
    shape: tuple[int, int, int, int]
    strides: tuple[int, int, int]  # of batch, row and head; that of d is 1

    @property
    def end(self) -> int:
        """One past the last element."""
        if 0 in self.shape:
            return self.offset
        last = sum((n - 1) * s for n, s in zip(self.shape, (*self.strides, 1), strict=True))
        return self.offset + last + 1

    def view(self, buffer: NDArray[Any]) -> NDArray[Any]:
        """The tensor in its buffer."""
        strides = tuple(stride * buffer.itemsize for stride in (*self.strides, 1))
        return as_strided(buffer[self.offset :], self.shape, strides)

    def arg(self, address: int) -> TensorArg:
        """What a kernel is told, when the buffer lies at `address`."""
        return TensorArg(address + self.offset * 2, *self.strides)


def places_of(case: Case) -> dict[str, Place]:
    """The place of q, k, v and o."""
    problem = case.problem
    if case.placement == "packed":
        return _packed(problem)
    make = {"contiguous": _contiguous, "padded": _padded, "transposed": _transposed}
    if case.placement not in make:
        raise ArgumentError(f"placement is {case.placement!r}; it is one of {PLACEMENTS}.")
    return {
        name: Place(name, MARGIN, shape, make[case.placement](shape))
        for name, shape in _shapes(problem).items()
    }


def fill_buffers(
    case: Case, places: Mapping[str, Place], inputs: Mapping[str, NDArray[Any]]
) -> dict[str, NDArray[Any]]:
    """Every buffer as it is before the launch: inputs, poisoned outputs, canaries elsewhere."""
    poison = POISON[case.problem.dtype]
    ends: dict[str, int] = {}
    for place in places.values():
        ends[place.buffer] = max(ends.get(place.buffer, 0), place.end)
    buffers: dict[str, NDArray[Any]] = {
        name: np.full(end + MARGIN, poison ^ _CANARY_XOR, np.uint16) for name, end in ends.items()
    }
    for name, place in places.items():
        place.view(buffers[place.buffer])[...] = inputs.get(name, poison)
    if case.lse:
        rows = case.problem.batch * case.problem.heads * case.problem.q_len
        buffers["lse"] = np.full(rows + 2 * MARGIN, LSE_POISON ^ _CANARY_XOR, np.uint32)
        buffers["lse"][MARGIN : MARGIN + rows] = LSE_POISON
    return buffers


def _shapes(problem: AttentionProblem) -> dict[str, tuple[int, int, int, int]]:
    queries = (problem.batch, problem.q_len, problem.heads, problem.d_head)
    keys = (problem.batch, problem.k_len, problem.kv_heads, problem.d_head)
    return {"q": queries, "k": keys, "v": keys, "o": queries}


def _contiguous(shape: tuple[int, int, int, int]) -> tuple[int, int, int]:
    _, rows, heads, d_head = shape
    return rows * heads * d_head, heads * d_head, d_head


def _padded(shape: tuple[int, int, int, int]) -> tuple[int, int, int]:
    """A gap of 8 elements behind every head, 16 more behind every row, 24 more behind a batch."""
    _, rows, heads, d_head = shape
    head = d_head + 8
    row = heads * head + 16
    return rows * row + 24, row, head


def _transposed(shape: tuple[int, int, int, int]) -> tuple[int, int, int]:
    """Heads outside rows (bhsd), with a gap of 8 elements behind every row."""
    _, rows, heads, d_head = shape
    row = d_head + 8
    return heads * rows * row, row, rows * row


def _packed(problem: AttentionProblem) -> dict[str, Place]:
    """Q, K and V side by side in the heads of one tensor, as a fused projection writes them."""
    if problem.q_len != problem.k_len:
        raise ArgumentError("packed tensors need q_len equal to k_len.")
    shapes = _shapes(problem)
    row = (problem.heads + 2 * problem.kv_heads) * problem.d_head
    strides = (problem.q_len * row, row, problem.d_head)
    first = {"q": 0, "k": problem.heads, "v": problem.heads + problem.kv_heads}
    places = {
        name: Place("qkv", MARGIN + head * problem.d_head, shapes[name], strides)
        for name, head in first.items()
    }
    places["o"] = Place("o", MARGIN, shapes["o"], _contiguous(shapes["o"]))
    return places
