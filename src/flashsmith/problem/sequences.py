"""The sequences of a problem: which rows and keys each has, and what it sees of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
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
    number: int  # its row in tables that have one for each sequence


def without_pages(problem: AttentionProblem, inputs: Tables) -> tuple[AttentionProblem, Tables]:
    """The same call on contiguous K and V; entries of the table that name no page are clamped."""
    if not problem.page:
        return problem, inputs
    if problem.sequences:
        return _packed_keys(problem, inputs)
    made = {name: array for name, array in inputs.items() if name != "block_table"}
    axis = _row_axis(problem)
    for name in ("k", "v"):
        made[name] = np.moveaxis(_paged_rows(problem, inputs, name), 1, axis)
    return replace(problem, page=0, pages=0), made


def _row_axis(problem: AttentionProblem) -> int:
    return 1 if problem.layout == "bshd" else 2


def _paged_rows(problem: AttentionProblem, inputs: Tables, name: str) -> NDArray[Any]:
    """Rows of every sequence, (sequences, k_len, …); entries that name no page are clamped."""
    pages = np.clip(inputs["block_table"].astype(np.int64), 0, problem.pages - 1)
    rows = np.moveaxis(inputs[name], _row_axis(problem), 1)[pages]  # (sequences, pages, rows, …)
    return rows.reshape(problem.requests, -1, *rows.shape[3:])[:, : problem.k_len]


def _packed_keys(problem: AttentionProblem, inputs: Tables) -> tuple[AttentionProblem, Tables]:
    """The same of packed rows: keys are packed too, as many as lengths say."""
    problem_of_keys, boundaries = with_packed_keys(problem, inputs["k_lengths"])
    lengths = np.diff(boundaries)
    made = {n: array for n, array in inputs.items() if n not in ("block_table", "k_lengths")}
    made["cu_seqlens_k"] = boundaries
    for name in ("k", "v"):
        rows = _paged_rows(problem, inputs, name)
        every = [one[:length] for one, length in zip(rows, lengths, strict=True)]
        packed = np.concatenate([*every, rows[0, :1]])[: problem_of_keys.k_len]
        made[name] = np.moveaxis(packed[None], 1, _row_axis(problem))
    return problem_of_keys, made


def with_packed_keys(
    problem: AttentionProblem, lengths: NDArray[Any]
) -> tuple[AttentionProblem, NDArray[np.int32]]:
    """A call of packed rows on pages as one on packed keys, and where those begin."""
    inside = np.clip(lengths.astype(np.int64), 0, problem.k_len)
    boundaries = np.concatenate([[0], np.cumsum(inside)]).astype(np.int32)
    k_len = max(int(boundaries[-1]), 1)  # of none there is one that nobody sees
    return replace(problem, page=0, pages=0, k_lengths=False, k_len=k_len), boundaries


def sequences_of(problem: AttentionProblem, tables: Tables) -> Iterator[SequenceOf]:
    """Every sequence of a call; lengths that are read from memory end inside the tensor.

    Rows that are of none are sequences without a key.
    """
    if problem.sequences:
        yield from _packed(problem, tables)
        return
    for batch in range(problem.batch):
        whole = SequenceOf(
            batch, slice(0, problem.q_len), slice(0, problem.k_len), problem.mask, batch
        )
        yield from _used(problem, tables, batch, whole)


def _used(
    problem: AttentionProblem, tables: Tables, number: int, whole: SequenceOf
) -> Iterator[SequenceOf]:
    """What tables leave of sequence `number`, and the rows behind that."""
    (row, row_end), (key, key_end) = ((of.start, of.stop) for of in (whole.rows, whole.keys))
    q_len = _entry(tables, "q_lengths", number, int(row_end - row))
    k_end = _entry(tables, "k_lengths", number, int(key_end - key))
    k_first = min(_entry(tables, "k_starts", number, 0, most=k_end), k_end)
    rows, keys = slice(row, row + q_len), slice(key + k_first, key + k_end)
    mask = problem.mask_of(q_len, k_end - k_first)
    yield SequenceOf(whole.batch, rows, keys, mask, number)
    if row + q_len < row_end:
        rest = slice(row + q_len, row_end)
        none = slice(keys.stop, keys.stop)
        mask = problem.mask_of(int(row_end - rest.start), 0)
        yield SequenceOf(whole.batch, rest, none, mask, number)


def _entry(tables: Tables, name: str, number: int, absent: int, *, most: int | None = None) -> int:
    """An entry of a table of lengths, from 0 to `most` (else to what holds where there is none)."""
    if name not in tables:
        return absent
    return int(min(max(int(tables[name][number]), 0), absent if most is None else most))


def boundaries_in(table: NDArray[Any], length: int) -> NDArray[np.int64]:
    """Where packed sequences begin, inside a tensor of `length` rows, and none before another."""
    return np.maximum.accumulate(np.clip(table.astype(np.int64), 0, length))


def _packed(problem: AttentionProblem, tables: Tables) -> Iterator[SequenceOf]:
    """Rows before the first sequence and behind the last are sequences without a key."""
    q = boundaries_in(tables["cu_seqlens_q"], problem.q_len)
    k = boundaries_in(tables["cu_seqlens_k"], problem.k_len)
    rows = [slice(0, q[0]), *(slice(*of) for of in pairwise(q)), slice(q[-1], problem.q_len)]
    keys = [slice(0, 0), *(slice(*of) for of in pairwise(k)), slice(0, 0)]
    for number, (own_rows, own_keys) in enumerate(zip(rows, keys, strict=True), start=-1):
        q_len, k_len = (int(own.stop - own.start) for own in (own_rows, own_keys))
        is_one = 0 <= number < problem.sequences
        mask = problem.mask_of(q_len, k_len)
        own = SequenceOf(0, own_rows, own_keys, mask, number if is_one else 0)
        if is_one:
            yield from _used(problem, tables, number, own)
        else:
            yield own
