"""What a caller is told once: work done elsewhere than they may think, or copies they can avoid."""

from __future__ import annotations

import sys
import warnings


class FlashsmithWarning(UserWarning):
    """Something worth knowing that changes no result."""


_INSIDE = ("flashsmith", "torch")
_said: set[str] = set()


def say_once(subject: str, text: str) -> None:
    """Warns with `text`, once a process for each `subject`."""
    if subject in _said:
        return
    _said.add(subject)
    warnings.warn(text, FlashsmithWarning, stacklevel=_first_frame_outside())


def forget() -> None:
    """Makes every subject new again."""
    _said.clear()


def _first_frame_outside() -> int:
    """How many frames above `say_once` the caller stands; torch's own frames may lie between."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] in _INSIDE:
        level, frame = level + 1, frame.f_back
    return level
