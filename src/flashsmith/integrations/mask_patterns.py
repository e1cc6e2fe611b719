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
