"""The masks of models: as few numbers as say it, where rows and keys are those of tokens in order.

What attention gets in the place of a mask says

- None: rows are causal from the first key on, or the model says that they are not;
- (batch, columns), bool: which keys are tokens; rows stand at the last columns (`padded_rows`);
- (batch, rows), integers: which packed sequence each row is of;
- (batch, 1, rows, keys): everything. transformers makes it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.compiler import is_compiling

from flashsmith.base.loose_types import Foreign
from flashsmith.integrations.mask_patterns import (
    Asked,
    Pattern,
    is_plain_prefill,
    pattern_of,
    q_length_of,
    q_offset_of,
)
from flashsmith.integrations.padded_rows import full, padding_of

PATTERN = "_flashsmith_pattern"  # the attribute of a mask that says what else holds


def mask_maker(
    whole_mask: Callable[..., Tensor | None], causal_mask_function: object
) -> Callable[..., Tensor | None]:
    """The function that transformers asks for masks; `whole_mask` is the one of its own."""

    def mask(**asked: Foreign) -> Tensor | None:
        if is_plain_prefill(asked, causal_mask_function):
            return None  # while torch.compile traces, too; a window is said by the model
        pattern = None if is_compiling() or _is_for_a_graph(asked) else pattern_of(asked)
        made = None if pattern is None else _short_mask(pattern, asked)
        if made is not None and pattern is not None:
            if _says_nothing(made, pattern, asked):
                return None
            setattr(made, PATTERN, pattern)
            return made
        return whole_mask(**asked)

    return mask


def _is_for_a_graph(asked: Asked) -> bool:
    """Whether a compiled step gets the mask: its shape must not grow with the cache."""
    is_on_device = isinstance(q_offset_of(asked), Tensor) and "q_offset" in asked
    return is_on_device and q_length_of(asked) == 1


def _short_mask(pattern: Pattern, asked: Asked) -> Tensor | None:
    """A mask of two dimensions; None where it cannot say what is asked for."""
    rows, keys, first = q_length_of(asked), int(asked["kv_length"]), int(asked.get("kv_offset", 0))
    given: Tensor | None = asked.get("attention_mask")
    if pattern.sequences is not None:
        is_plain = given is None and rows == keys and pattern.sequences.shape[1] == rows
        return pattern.sequences if is_plain else None
    columns = int(q_offset_of(asked)) + rows - first if pattern.causal else keys
    if not 0 < columns <= keys:
        return None
    if given is None:
        device = torch.device(asked.get("device") or "cpu")
        return full(int(asked["batch_size"]), columns, device)
    cut = given[:, first : first + columns].bool()
    if cut.shape[1] < columns:
        cut = torch.nn.functional.pad(cut, (0, columns - cut.shape[1]))
    return None if padding_of(cut).has_holes else cut


def _says_nothing(mask: Tensor, pattern: Pattern, asked: Asked) -> bool:
    """Whether None says the same."""
    if pattern.sequences is not None or not padding_of(mask).is_full:
        return False
    rows, columns = q_length_of(asked), mask.shape[1]
    if columns != asked["kv_length"] or is_windowed(pattern, columns):
        return False
    return not pattern.causal or rows in (1, columns)


def is_windowed(pattern: Pattern, columns: int) -> bool:
    """Whether a window hides any of so many keys."""
    return pattern.window is not None and columns > pattern.window
