"""docs/ahead_of_time.md shows what its record says of kernels made ahead."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import ahead_record


@pytest.mark.parametrize("name", ahead_record.TABLES)
def test_a_table_is_the_one_that_the_record_gives(name):
    assert ahead_record.shown(name) == ahead_record.TABLES[name]()


def test_the_record_was_made_of_clean_checkouts():
    for part in ("model", "registry"):
        assert all(not data["environment"]["dirty"] for data in ahead_record.newest(part))
        assert ahead_record.newest(part)
