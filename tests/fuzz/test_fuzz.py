"""A slice of `make fuzz`, always the same one: damage is refused in words or does no harm."""

import random

import pytest
from run import TARGETS

SEED = 23


@pytest.mark.parametrize("name", TARGETS)
def test_no_damage_is_silent_wrong_or_endless(name, tmp_path):
    target, _, count = TARGETS[name]
    target(random.Random(f"{SEED} {name}"), count, tmp_path)
