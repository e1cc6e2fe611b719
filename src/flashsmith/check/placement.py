"""Where a case's tensors lie in memory, with canaries before, behind and between their rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flashsmith.base.errors import ArgumentError
from flashsmith.check.cases import Case
from flashsmith.kernels.launch import SCRATCH
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.signature import TensorRole, signature_of
from flashsmith.runtime.tensors import (
    STATISTICS_POISON,
    Location,
    ScoresLocation,
    bits_type,
    contiguous,
    poison_of,
)

MARGIN = 128  # elements before and behind the tensors of a buffer
PLACEMENTS = ("contiguous", "padded", "transposed", "packed")
_CANARY_XOR = 0x0003  # a canary is a NaN too (a read of it spoils the output), but not the poison


def locations_of(case: Case) -> dict[str, Location]:
    """The location of every tensor of the call."""
    if case.placement not in PLACEMENTS:
        raise ArgumentError(f"placement is {case.placement!r}; it must be one of {PLACEMENTS}.")
    problem = case.problem
    packed = _packed(problem) if case.placement == "packed" else {}
    return {
        role.name: packed.get(role.name) or _placed(role, case)
        for role in signature_of(problem).of(problem)
    }


def fill_buffers(
    case: Case, locations: Mapping[str, Location], inputs: Mapping[str, NDArray[Any]]
) -> dict[str, NDArray[Any]]:
    """Every buffer as it is before the launch: inputs, poisoned outputs, canaries elsewhere."""
    problem = case.problem
    roles = {role.name: role for role in signature_of(problem).of(problem)}
    buffers: dict[str, NDArray[Any]] = {}
    for name, location in locations.items():
        end = max(other.end for other in locations.values() if other.buffer == location.buffer)
        canary = poison_of(roles[name], problem) ^ _CANARY_XOR
        kind = bits_type(roles[name], problem)
        if location.buffer not in buffers:
            buffers[location.buffer] = np.full(end + MARGIN, canary, kind)
        location.view(buffers[location.buffer])[...] = inputs.get(
            name, poison_of(roles[name], problem)
        )
    return buffers


def scratch_location(n_bytes: int) -> Location:
    """Memory of a call that is no tensor, in 32-bit words."""
    return Location(SCRATCH, MARGIN, (n_bytes // 4,), ())


def scratch_buffer(location: Location) -> NDArray[Any]:
    """Scratch as it is before the launches: NaN, between canaries."""
    buffer = np.full(location.end + MARGIN, STATISTICS_POISON ^ _CANARY_XOR, np.uint32)
    location.view(buffer)[...] = STATISTICS_POISON
    return buffer


def _placed(role: TensorRole, case: Case) -> Location:
    shape = role.rows_first(case.problem)
    if role.is_scores:
        return _scores(role, case)
    if not role.is_rows or case.placement in ("contiguous", "packed"):
        return contiguous(role.name, shape, MARGIN)
    make = {"padded": _padded, "transposed": _transposed}[case.placement]
    return Location(role.name, MARGIN, shape, make(shape))


def _scores(role: TensorRole, case: Case) -> Location:
    """A bias as callers have them, another for each placement; see `check.cases.drawn_bias`."""
    problem = case.problem
    heads, rows, keys = problem.heads, problem.q_len, problem.k_len
    strides = {
        "contiguous": (heads * rows * keys, rows * keys, keys, 1),
        "padded": (rows * (keys + 3) + 5, 0, keys + 3, 1),  # of all heads; rows at odd places
        "transposed": (0, keys * (rows + 3), 1, rows + 3),  # of all sequences; by key
        "packed": (keys + 2, 0, 0, 1),  # of all heads and rows, as padding is
    }
    *outer, key_stride = strides[case.placement]
    return ScoresLocation(role.name, MARGIN, role.shape(problem), tuple(outer), key_stride)


def _padded(shape: tuple[int, ...]) -> tuple[int, int, int]:
    """A gap of 8 elements behind every head, 16 more behind every row, 24 more behind a batch."""
    _, rows, heads, d_head = shape
    head = d_head + 8
    row = heads * head + 16
    return rows * row + 24, row, head


def _transposed(shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Heads outside rows (bhsd), with a gap of 8 elements behind every row."""
    _, rows, heads, d_head = shape
    row = d_head + 8
    return heads * rows * row, row, rows * row


def _packed(problem: AttentionProblem) -> dict[str, Location]:
    """Q, K and V side by side in the heads of one tensor, as a fused projection writes them.

    Their gradients likewise, as its own gradient takes them.
    """
    if problem.q_len != problem.k_len:
        raise ArgumentError("packed tensors need q_len equal to k_len.")
    row = (problem.heads + 2 * problem.kv_heads) * problem.d_head
    strides = (problem.q_len * row, row, problem.d_head)
    first = {"q": 0, "k": problem.heads, "v": problem.heads + problem.kv_heads}
    return {
        role.name: Location(
            "dqkv" if role.is_output else "qkv",
            MARGIN + first[role.name.removeprefix("d")] * problem.d_head,
            role.rows_first(problem),
            strides,
        )
        for role in signature_of(problem).of(problem)
        if role.name.removeprefix("d") in first
    }
