"""Texts as HTML: whatever a record says is shown letter by letter."""

from __future__ import annotations

import html
import re

from flashsmith.base.plain_text import plain


def escape(text: str) -> str:
    """A text inside an element or a quoted attribute."""
    return html.escape(plain(text))


def element(tag: str, text: str, kind: str = "") -> str:
    """An element that holds a text."""
    named = f' class="{kind}"' if kind else ""
    return f"<{tag}{named}>{escape(text)}</{tag}>"


def coded(text: str) -> str:
    """A text whose parts between backticks are code."""
    return re.sub("`([^`]+)`", r"<code>\1</code>", escape(text))


def prose(text: str) -> str:
    """A paragraph; none for an empty text."""
    return f"<p>{coded(text)}</p>" if text else ""
