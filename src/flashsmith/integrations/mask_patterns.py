"""What a mask says that transformers asks for: causal or not, a window, packed sequences."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from flashsmith.base.loose_types import Foreign, TorchTensor

Asked = dict[str, Foreign]  # what each version of transformers asks by


@dataclass(frozen=True, slots=True)
class Pattern:
    """Which keys a row sees, where nothing is padded."""

    causal: bool
    window: int | None = None  # keys of a window, a row's own among them
    sequences: TorchTensor | None = None  # (batch, rows): equal numbers are one packed sequence


def pattern_of(asked: Asked) -> Pattern | None:
    """The pattern of the mask that is asked for; None for one of another kind."""
    parts = list(_parts_of(asked.get("mask_function")))
    names = [_name_of(part) for part in parts]
    causal, window, sequences = False, None, None
    for part, name in zip(parts, names, strict=True):
        if "causal_mask_function" in name:
            causal = True
        elif "sliding_window_overlay" in name:
            window = asked.get("local_size") or _closed_over(part)
        elif "packed_sequence_mask_function" in name:
            sequences = _closed_over(part)
        elif "bidirectional_mask_function" not in name:
            return None
    is_odd = window is not None and not (causal and isinstance(window, int))
    if not parts or is_odd or (window is None and asked.get("local_size") is not None):
        return None
    return Pattern(causal, window, sequences)


def q_length_of(asked: Asked) -> int:
    """How many rows the mask is for."""
    # Versions 4 give the positions of the queries in place of their number.
    return int(asked["q_length"] if "q_length" in asked else asked["cache_position"].shape[0])


def q_offset_of(asked: Asked) -> Foreign:
    """At which position the first row stands; static caches know it on the device only."""
    if "q_offset" in asked:
        return asked["q_offset"]
    return asked["cache_position"][0] if "cache_position" in asked else 0


def _parts_of(function: object) -> Iterator[object]:
    """The mask functions that one demands together; one that it cannot look into is a part."""
    if not callable(function):
        return
    if not _name_of(function).startswith("and_masks."):
        yield function
        return
    for cell in getattr(function, "__closure__", None) or ():
        for part in cell.cell_contents if isinstance(cell.cell_contents, tuple | list) else ():
            yield from _parts_of(part)


def _name_of(function: object) -> str:
    return str(getattr(function, "__qualname__", ""))


def _closed_over(function: object) -> Foreign:
    """The one value that a mask function is made with."""
    values = [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]
    return values[0] if len(values) == 1 else None


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
