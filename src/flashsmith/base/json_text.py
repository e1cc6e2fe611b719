"""JSON of foreign files: whatever is wrong with a text, it is a `ValueError`."""

from __future__ import annotations

import json
from typing import Any


def parse_json(text: str | bytes) -> Any:  # Any: JSON
    """As `json.loads`; a text nested deeper than Python recurses is a `ValueError` too."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
