"""The sequences of a problem: which rows and keys each has, and what it sees of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

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


def sequences_of(problem: AttentionProblem, tables: Tables) -> Iterator[SequenceOf]:
    """Every sequence of a call; lengths that are read from memory end inside the tensor."""
    for batch in range(problem.batch):
        k_len = problem.k_len
        if problem.k_lengths:
            k_len = min(max(int(tables["k_lengths"][batch]), 0), k_len)
        mask = problem.mask_of(problem.q_len, k_len)
        yield SequenceOf(batch, slice(0, problem.q_len), slice(0, k_len), mask)
