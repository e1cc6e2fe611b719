"""JSON of foreign files: whatever is wrong with a text, it is a `ValueError`."""

from __future__ import annotations

import json
import math
from typing import NoReturn

from flashsmith.base.loose_types import Json


def parse_json(text: str | bytes) -> Json:
    """As `json.loads`, less what no JSON writes: NaN, numbers beyond float, half a character."""
    try:
        value = json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if rb"\u" in (text.encode() if isinstance(text, str) else text):
        # Half a surrogate pair can be spelt, but no file and no database takes it.
        json.dumps(value, ensure_ascii=False).encode()
    return value


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a number of JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:40]} is beyond the largest number")
    return number
