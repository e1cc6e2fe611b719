"""The closure of a unit: every header it reaches, each once, hashed by name and content."""

import pytest

from flashsmith.base.errors import FlashsmithError
from flashsmith.compile.header_closure import closure_hash, header_closure

UNIT = '#include "flashsmith/a.cuh"\n'


@pytest.fixture
def root(tmp_path):
    folder = tmp_path / "flashsmith"
    folder.mkdir()
    (folder / "a.cuh").write_text('#pragma once\n#include "flashsmith/b.cuh"\n')
    # A circle, as guarded headers may have; and an include that only a comment speaks of.
    (folder / "b.cuh").write_text('#include "flashsmith/a.cuh"\n// #include "flashsmith/c.cuh"\n')
    (folder / "c.cuh").write_text("int c;\n")
    return tmp_path


def test_every_header_is_reached_once(root):
    assert header_closure(UNIT, root) == ["flashsmith/a.cuh", "flashsmith/b.cuh"]


def test_a_change_at_any_depth_changes_the_hash(root):
    before = closure_hash(UNIT, root)
    assert closure_hash(UNIT, root) == before
    (root / "flashsmith" / "b.cuh").write_text("int b_is_longer_than_it_was;\n")
    assert closure_hash(UNIT, root) != before


def test_a_header_outside_the_closure_does_not_count(root):
    before = closure_hash(UNIT, root)
    (root / "flashsmith" / "c.cuh").write_text("int other;\n")
    assert closure_hash(UNIT, root) == before


def test_a_header_that_is_not_there_is_named(root):
    with pytest.raises(FlashsmithError, match=r'#include "flashsmith/none.cuh": no such header'):
        closure_hash('#include "flashsmith/none.cuh"\n', root)
