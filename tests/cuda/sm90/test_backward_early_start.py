"""Launches of a backward pass that begin early: what they wait for, and before what."""

import re

import pytest

from flashsmith.compile.compiler import compile_ptx
from flashsmith.kernels import parse_config
from flashsmith.problem.needs import Needs

NARROW = parse_config("hopper_bwd(BF16, 128): ds_2+early_start")
BROAD = parse_config("hopper_bwd(BF16, 256): ds_2+two_passes+early_start")
LET, WAIT = "griddepcontrol.launch_dependents", "griddepcontrol.wait"
GLOBAL = r"\b(?:ld|st|red|atom)\.(?:\w+\.)*global|cp\.(?:reduce\.)?async\.bulk"


def instructions(part) -> list[str]:
    """What the launch asks of others and of memory, in the order of its text."""
    ptx = compile_ptx(part, Needs(), "sm_90a").ptx
    return [match.group(0) for match in re.finditer(rf"{LET}|{WAIT}|{GLOBAL}", ptx)]


def test_rows_let_the_next_launch_begin_at_once():
    assert instructions(NARROW.rows)[0] == LET


@pytest.mark.parametrize("config", [NARROW, BROAD], ids=str)
def test_kv_blocks_wait_before_they_touch_memory_and_let_the_next_begin_then(config):
    found = instructions(config.tiles)
    assert found[:2] == [WAIT, LET]
    assert not {WAIT, LET} & set(found[2:])


def test_sums_are_rounded_when_they_are_complete():
    assert instructions(NARROW.convert)[0] == WAIT


def test_a_launch_that_needs_nothing_of_the_one_before_waits_for_it_at_its_end():
    found = instructions(BROAD.convert)
    assert found.count(WAIT) == 1
    assert found[0] != WAIT
    assert LET not in found


def test_without_it_nobody_waits():
    plain = parse_config("hopper_bwd(BF16, 128): ds_2")
    assert not any({WAIT, LET} & set(instructions(part)) for part in plain.kernels())
