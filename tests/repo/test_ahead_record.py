"""docs/ahead_of_time.md shows what its record says of kernels made ahead."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import ahead_record

from flashsmith.api.ahead.model_shapes import model_problems
from flashsmith.kernels.plans import kernels_of
from flashsmith.tuner.choose.choice import choose


@pytest.mark.parametrize("name", ahead_record.TABLES)
def test_a_table_is_the_one_that_the_record_gives(name):
    assert ahead_record.shown(name) == ahead_record.TABLES[name]()


def test_the_record_was_made_of_clean_checkouts():
    for part in ("model", "registry"):
        assert all(not data["environment"]["dirty"] for data in ahead_record.newest(part))
        assert ahead_record.newest(part)


@pytest.mark.parametrize("data", ahead_record.newest("model"), ids=lambda d: d["what"]["name"])
def test_a_model_needs_as_many_kernels_as_are_recorded(data):
    """By what is chosen today, with nothing compiled; else record again: ahead_record.py models."""
    what = data["what"]
    config = ahead_record.config_of(what["name"])
    problems = set(model_problems(config, training=what["training"]))
    chosen = {p: choose(p, ahead_record.ARCH, gpu=ahead_record.GPU).config for p in problems}
    kernels = {kernel for p, config in chosen.items() for kernel in kernels_of(config, p)}
    recorded = data["result"]
    assert (len(problems), len(kernels)) == (recorded["problems"], recorded["kernels"])
