"""JSON of foreign files: whatever is wrong with a text, it is a `ValueError`."""

from __future__ import annotations

import json
from typing import Any


def parse_json(text: str | bytes) -> Any:  # Any: JSON
    """As `json.loads`; what is nested too deeply, or is half a character, is refused too."""
    try:
        value = json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if rb"\u" in (text.encode() if isinstance(text, str) else text):
        # Half a surrogate pair can be spelt, but no file and no database takes it.
        json.dumps(value, ensure_ascii=False).encode()
    return value
