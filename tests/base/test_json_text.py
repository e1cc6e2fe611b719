"""JSON of foreign files: what Python or a file cannot hold is a ValueError like any bad text."""

import pytest

from flashsmith.base.json_text import parse_json


def test_good_text_is_read_as_text_and_as_bytes():
    assert parse_json('{"a": ["\\u00e9", 1.5]}') == {"a": ["é", 1.5]}
    assert parse_json(b'"\\ud83d\\ude00"') == "\N{GRINNING FACE}"


@pytest.mark.parametrize("text", ["{", "[" * 100_000, "1" * 5000, '["\\ud800"]', b"\xff"])
def test_whatever_is_wrong_is_a_value_error(text):
    with pytest.raises(ValueError, match=r"."):
        parse_json(text)
