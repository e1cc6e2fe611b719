"""Attention in chunks, as Llama 4's: every chunk of a sequence is a packed sequence of its own.

A row stands at key p = row + keys - rows of its sequence, and sees the keys of its chunk alone,
those from p - p % chunk on. Under a causal mask the last row of a chunk stands at its last key, so
that masks above a packed sequence are those of the chunk.
"""

from __future__ import annotations

import torch
from torch import Tensor


def chunk_boundaries(
    of_q: Tensor, of_k: Tensor, total_keys: int, chunk: int
) -> tuple[Tensor, Tensor]:
    """Where the chunks of packed sequences begin, in rows and in keys; nothing waits for a GPU.

    Each sequence has one place for rows before its first key, which see none, and one for each
    chunk of its keys. How many that are is not known here: the places behind the last are empty.
    """
    begin_q, begin_k = of_q[:-1].long(), of_k[:-1].long()
    rows, keys = of_q[1:].long() - begin_q, of_k[1:].long() - begin_k
    places = 1 + (keys + chunk - 1) // chunk
    ends = places.cumsum(0)
    most = total_keys // chunk + 2 * len(rows)
    place = torch.arange(most, device=of_q.device)
    sequence = torch.searchsorted(ends, place, right=True)
    is_one, sequence = sequence < len(rows), sequence.clamp(max=len(rows) - 1)
    first = (place - (ends - places)[sequence] - 1) * chunk  # key; below 0: rows before all keys
    row = (first + (rows - keys)[sequence]).clamp(min=0)
    row = torch.where(first < 0, 0, torch.minimum(row, rows[sequence])) + begin_q[sequence]
    key = torch.minimum(first.clamp(min=0), keys[sequence]) + begin_k[sequence]
    found = []
    for begins, own in ((row, of_q), (key, of_k)):
        whole = torch.where(is_one, begins, own[-1].long())
        found.append(torch.cat([whole, own[-1:].long()]).to(torch.int32))
    return found[0], found[1]


def equal_boundaries(batch: int, length: int, device: torch.device) -> Tensor:
    """Of sequences of one length."""
    return torch.arange(batch + 1, dtype=torch.int32, device=device) * length
