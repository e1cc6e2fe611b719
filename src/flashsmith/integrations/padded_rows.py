"""Padded batches by lengths, or as packed sequences, with no row moved.

Packed, padding belongs to sequences of its own.

A mask of two dimensions, (batch, columns), says which keys of a batch are tokens; the new rows
stand at its last columns. Where the tokens of each sequence lie together, its rows and keys are

    row of the batch   | 0: . . a a a | 1: b b b b . | 2: . c c c c |
    sequences of rows  |  (.)  a      |  b       ( .      .)   c    |   padding sees no key
    sequences of keys  |  (.)  a      |  b       ( .      .)   c    |   and is seen by no row

so that boundaries say it all, and no number is read by the host. Where no gradient is wanted, the
lengths of each sequence say it without a batch that lies one behind the other.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_KEPT = "_flashsmith_padding"  # the attribute of a mask: every layer of a step asks


@dataclass(frozen=True, slots=True)
class Padding:
    """What a mask of two dimensions leaves of each sequence."""

    first: Tensor  # (batch,): the first column that is a token
    last: Tensor  # (batch,): the column behind the last one
    is_full: bool  # every column is one
    has_holes: bool  # between tokens of a sequence lies padding


def padding_of(mask: Tensor) -> Padding:
    """Of a mask of two dimensions; found once, which waits for the GPU."""
    found = getattr(mask, _KEPT, None)
    if isinstance(found, Padding):
        return found
    columns = mask.shape[1]
    places = torch.arange(1, columns + 1, device=mask.device) * mask
    last = places.amax(1) if columns else places.sum(1)
    count = mask.sum(1)
    first = torch.where(count > 0, mask.int().argmax(1), 0) if columns else last
    holes, padded = torch.stack([(last - first != count).any(), (count != columns).any()]).tolist()
    made = Padding(first, last, is_full=not padded, has_holes=bool(holes))
    setattr(mask, _KEPT, made)
    return made


def full(batch: int, columns: int, device: torch.device) -> Tensor:
    """A mask that hides nothing: it says at which columns the rows stand."""
    mask = torch.ones(batch, 1, dtype=torch.bool, device=device).expand(-1, columns)
    ends = torch.full((batch,), columns, device=device)
    setattr(mask, _KEPT, Padding(torch.zeros_like(ends), ends, is_full=True, has_holes=False))
    return mask


def lengths(padding: Padding, rows: int, columns: int, *, causal: bool) -> dict[str, Tensor]:
    """The same as lengths of a batch whose rows stay where they are, by the names of a call.

    Where the mask is causal the last row that counts stands at the last token.
    """
    found = {"k_starts": padding.first.int(), "k_lengths": padding.last.int()}
    if causal:
        found["q_lengths"] = (padding.last - (columns - rows)).clamp(0, rows).int()
    return found


def boundaries(padding: Padding, rows: int, columns: int, *, causal: bool) -> tuple[Tensor, Tensor]:
    """`cu_seqlens_q` and `cu_seqlens_k` of a batch whose rows and keys lie one behind the other.

    Rows that are padding see nothing where the mask is causal: each stands at a column. Others are
    of another kind than the keys, or see all of them.
    """
    first, last = padding.first, padding.last
    batch = torch.arange(len(first), device=first.device)
    q_first, q_last = torch.zeros_like(first), torch.full_like(first, rows)
    if causal:
        q_first, q_last = ((x - (columns - rows)).clamp(0, rows) for x in (first, last))
    q_first, q_last = q_first + batch * rows, q_last + batch * rows
    first, last = first + batch * columns, last + batch * columns
    before = torch.cat([first[:1], last[:-1]])
    of_q = torch.stack([q_first, q_first, q_last], 1).flatten()[1:]
    of_k = torch.stack([before, first, last], 1).flatten()[1:]
    return of_q.int(), of_k.int()


def boundaries_of_sequences(sequences: Tensor) -> Tensor:
    """`cu_seqlens` of rows that are numbered by their sequences, (batch, rows); waits for the GPU.

    A sequence ends with its row of the batch.
    """
    found = getattr(sequences, _KEPT, None)
    if isinstance(found, Tensor):
        return found
    begins = torch.ones_like(sequences, dtype=torch.bool)
    begins[:, 1:] = sequences[:, 1:] != sequences[:, :-1]
    starts = begins.flatten().nonzero().flatten()
    ends = torch.cat([starts, starts.new_full((1,), sequences.numel())]).int()
    setattr(sequences, _KEPT, ends)
    return ends
