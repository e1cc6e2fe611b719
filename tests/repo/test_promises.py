"""The page of promises: every promise names the test that holds it, and that test exists."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "promises.md").read_text(encoding="utf-8")
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")
HELD = PAGE.partition("## Not promised")[0]
PROMISES = [line for line in HELD.splitlines() if line.startswith("- ")]


def test_every_promise_names_a_test():
    assert len(PROMISES) >= 40
    assert [line for line in PROMISES if not NAMED.findall(line)] == []


@pytest.mark.parametrize(("file", "name"), sorted(set(NAMED.findall(PAGE))))
def test_the_test_that_holds_a_promise_exists(file, name):
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    assert name in [function.name for function in functions]


def test_the_page_states_what_make_fuzz_draws():
    from run import TARGETS

    said = re.sub(r"[,\s]+", " ", PAGE.replace(",", ""))
    for name, (_, count, _) in TARGETS.items():
        assert re.search(rf"{count} (?:damaged )?{name}", said), name
