"""Texts of others without what steers a terminal or a spreadsheet."""

from __future__ import annotations

_MOST_SHOWN = 200  # letters of a text that an error repeats

# What spreadsheets take for the beginning of a formula.
_FORMULA = ("=", "+", "-", "@")


def plain(text: str) -> str:
    """The text on one line, every character that does not print written as its escape: `\\x1b`."""
    return "".join(map(_visible, text))


def shortened(text: str) -> str:
    """The text as an error repeats it: its beginning says enough."""
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"


def csv_text(text: str) -> str:
    """As `plain`, with an apostrophe before what a spreadsheet would compute."""
    shown = plain(text)
    return f"'{shown}" if shown.lstrip().startswith(_FORMULA) else shown


def _visible(letter: str) -> str:
    if letter in "\t\n\r":
        return " "
    return letter if letter.isprintable() else letter.encode("unicode_escape").decode("ascii")
