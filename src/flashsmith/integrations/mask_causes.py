"""Why transformers makes an attention mask, told by what it asks the function that makes one."""

from __future__ import annotations

from collections.abc import Iterator

from flashsmith.base.loose_types import TorchTensor
from flashsmith.integrations.mask_patterns import Asked, q_length_of

CAUSE = "_flashsmith_cause"  # the attribute of a mask that says it


def is_plain_prefill(asked: Asked, causal_mask_function: object) -> bool:
    """Whether a mask is wanted that `is_causal` and a window state: every query at its own key."""
    return (
        q_length_of(asked) == asked["kv_length"]
        and asked.get("attention_mask") is None
        and _is_causal(asked, causal_mask_function)
        and bool(asked.get("allow_is_causal_skip", False))
    )


def _is_causal(asked: Asked, causal_mask_function: object) -> bool:
    """Whether a row sees all keys up to its own, or those of a window."""
    function = asked.get("mask_function")
    if asked.get("local_size") is None:
        return function is causal_mask_function
    # transformers makes the function of a window from parts of these names.
    parts = ("and_mask", "sliding_window", getattr(causal_mask_function, "__qualname__", ""))
    names = list(_names_in(function))
    return any("sliding_window" in name for name in names) and all(
        any(part in name for part in parts) for name in names
    )


def cause_of(asked: Asked, causal_mask_function: object) -> str:
    """Why a mask is made, and what a caller can do: the first cause that applies."""
    made_of = set(_names_in(asked.get("mask_function")))
    queries, keys, size = q_length_of(asked), asked["kv_length"], asked.get("local_size")
    if any("packed" in name for name in made_of):
        return "because positions restart (packed sequences): pass one sequence a row"
    if any("chunk" in name for name in made_of):
        return f"because the model attends in chunks of {size} and there are {keys} keys"
    if size is not None:
        return f"because the model has a sliding window of {size} and there are {keys} keys"
    if _has_padding(asked.get("attention_mask")):
        return "because padding lies between tokens of a sequence: pad at one end only"
    if 1 < queries != keys:
        return (
            f"because {queries} new tokens stand behind cached ones ({keys} keys): pass them one "
            f"by one, or all at once without a cache"
        )
    if asked.get("mask_function") is not causal_mask_function:
        return "because the model lets some tokens see later ones (a prefix, or those of an image)"
    return "because attention_mask was given: pass none where nothing is padded"


def _has_padding(attention_mask: TorchTensor | None) -> bool:
    return attention_mask is not None and not bool(attention_mask.bool().all())


def _names_in(function: object, depth: int = 4) -> Iterator[str]:
    """The names of a mask function and of those that it closes over: it is made of them."""
    if isinstance(function, tuple | list):
        for part in function:
            yield from _names_in(part, depth)
    if not callable(function) or depth == 0:
        return
    yield str(getattr(function, "__qualname__", ""))
    for cell in getattr(function, "__closure__", None) or ():
        yield from _names_in(cell.cell_contents, depth - 1)
