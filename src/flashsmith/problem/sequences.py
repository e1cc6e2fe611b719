"""The sequences of a problem: which rows and keys each has, and what it sees of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.mask import Mask

Tables = Mapping[str, NDArray[Any]]  # of a call, by the names of their roles; other tensors too


@dataclass(frozen=True, slots=True)
class SequenceOf:
    """One sequence: rows and keys of one entry of the batch."""

    batch: int
    rows: slice
    keys: slice
    mask: Mask


def without_pages(problem: AttentionProblem, inputs: Tables) -> tuple[AttentionProblem, Tables]:
    """The same call on contiguous K and V; entries of the table that name no page are clamped."""
    if not problem.page:
        return problem, inputs
    pages = np.clip(inputs["block_table"].astype(np.int64), 0, problem.pages - 1)
    axis = 1 if problem.layout == "bshd" else 2  # of the rows of a page
    made = {name: array for name, array in inputs.items() if name != "block_table"}
    for name in ("k", "v"):
        rows = np.moveaxis(inputs[name], axis, 1)[pages]  # (batch, pages, rows, …)
        rows = rows.reshape(problem.batch, -1, *rows.shape[3:])[:, : problem.k_len]
        made[name] = np.moveaxis(rows, 1, axis)
    return replace(problem, page=0, pages=0), made


def sequences_of(problem: AttentionProblem, tables: Tables) -> Iterator[SequenceOf]:
    """Every sequence of a call; lengths that are read from memory end inside the tensor."""
    for batch in range(problem.batch):
        k_len = problem.k_len
        if problem.k_lengths:
            k_len = min(max(int(tables["k_lengths"][batch]), 0), k_len)
        mask = problem.mask_of(problem.q_len, k_len)
        yield SequenceOf(batch, slice(0, problem.q_len), slice(0, k_len), mask)
