"""flash_attn.bert_padding: rows of tokens out of a padded batch, and back; torch differentiates."""

from __future__ import annotations

import torch
from torch import Tensor


def index_first_axis(rows: Tensor, indices: Tensor) -> Tensor:
    """The rows, (rows, …), that the indices name."""
    return rows.index_select(0, indices)


def index_put_first_axis(values: Tensor, indices: Tensor, first_axis_dim: int) -> Tensor:
    """The reverse: so many rows of zeros, in which the values stand where the indices say."""
    return values.new_zeros(first_axis_dim, *values.shape[1:]).index_copy(0, indices, values)


def unpad_input(
    hidden_states: Tensor, attention_mask: Tensor, unused_mask: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor, int, Tensor]:
    """Tokens of a padded batch, (batch, sequence, …), one behind the other, as version 2.8 does.

    A token is where `attention_mask`, (batch, sequence), is 1; `unused_mask` keeps rows that are
    not counted as used. Returns the rows, their places in the flattened batch, where each sequence
    begins and the last one ends (int32), the longest length, and how many rows of each sequence
    are used (int32). Waits for the GPU.
    """
    kept = attention_mask if unused_mask is None else attention_mask + unused_mask
    lengths = kept.sum(-1, dtype=torch.int32)
    indices = kept.flatten().nonzero().flatten()
    boundaries = torch.zeros(len(lengths) + 1, dtype=torch.int32, device=lengths.device)
    torch.cumsum(lengths, 0, dtype=torch.int32, out=boundaries[1:])
    longest = int(lengths.max()) if len(lengths) else 0
    used = attention_mask.sum(-1, dtype=torch.int32)
    rows = index_first_axis(hidden_states.flatten(0, 1), indices)
    return rows, indices, boundaries, longest, used


def pad_input(hidden_states: Tensor, indices: Tensor, batch: int, seqlen: int) -> Tensor:
    """The reverse: (batch, seqlen, …) with zeros where no token is."""
    rows = index_put_first_axis(hidden_states, indices, batch * seqlen)
    return rows.unflatten(0, (batch, seqlen))
