"""Whole numbers in texts of others: digits in, a number out, however many digits there are."""

from __future__ import annotations

_MOST_DIGITS = 18  # any more is no count of anything, and below 2^63


def whole_number(text: str) -> int | None:
    """The number that a text of ASCII digits spells, or None where it is none or far too long."""
    is_short = 0 < len(text) <= _MOST_DIGITS
    return int(text) if is_short and text.isascii() and text.isdecimal() else None
