"""House rules a machine can hold: sizes of files and functions, first lines, words left behind."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 60
MAX_COLUMNS = 100
MAX_MODULES = 20  # of one folder of sources: more are several things

# Path and reason: a file here may be longer.
LONG_FILES = {
    "src/flashsmith/cuda/include/flashsmith/sm90/backward/consumer.cuh": (
        "one loop of products; what was taken out of it made other machine code than was measured"
    ),
}
# "path::function" and reason: a function here may be longer.
LONG_FUNCTIONS: dict[str, str] = {}
# Folder and reason: it may hold more modules.
LARGE_FOLDERS = {
    "src/flashsmith/cuda/include/flashsmith/ptx/wgmma": "written by a tool, one for each width",
}

SUFFIXES = {".py", ".cuh", ".cu", ".cpp", ".h"}


FILES = sorted(
    path
    for folder in ("src", "tests", "benchmarks")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in SUFFIXES
)
PYTHON = [path for path in FILES if path.suffix == ".py"]


def name_of(path):
    return path.relative_to(ROOT).as_posix()


def test_no_file_is_longer_than_it_may_be():
    lengths = {name_of(p): len(p.read_text(encoding="utf-8").splitlines()) for p in FILES}
    long = {name: n for name, n in lengths.items() if n > MAX_FILE_LINES}
    assert set(long) <= set(LONG_FILES), long


def test_no_folder_of_sources_holds_more_modules_than_it_may():
    counts: dict[str, int] = {}
    for path in FILES:
        if path.is_relative_to(ROOT / "src") and path.name != "__init__.py":
            counts[name_of(path.parent)] = counts.get(name_of(path.parent), 0) + 1
    large = {name: n for name, n in counts.items() if n > MAX_MODULES}
    assert set(large) <= set(LARGE_FOLDERS), large


def test_no_function_is_longer_than_it_may_be():
    long = {}
    for path in PYTHON:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or 0) - node.lineno + 1
                if lines > MAX_FUNCTION_LINES:
                    long[f"{name_of(path)}::{node.name}"] = lines
    assert set(long) <= set(LONG_FUNCTIONS), long


def test_the_first_line_of_every_file_says_what_it_knows():
    silent = []
    for path in FILES:
        text = path.read_text(encoding="utf-8")
        first = text.splitlines()[0] if text.strip() else ""
        wanted = ('"""', "#!") if path.suffix == ".py" else ("//", "/*")
        if text.strip() and not first.startswith(wanted):
            silent.append(name_of(path))
    assert not silent


def test_headers_keep_to_the_line_length():
    wide = [
        f"{name_of(path)}:{number}"
        for path in FILES
        if path.suffix != ".py"
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if len(line) > MAX_COLUMNS
    ]
    assert not wide


@pytest.mark.parametrize("word", ["TODO", "FIXME", "XXX", "HACK"])
def test_nothing_is_left_to_be_done_without_an_issue(word):
    left = [
        f"{name_of(path)}:{number}"
        for path in FILES
        if path != Path(__file__)
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if re.search(rf"\b{word}\b(?!\(#\d+\))", line)
    ]
    assert not left


def test_no_module_is_called_by_a_word_that_says_nothing():
    empty_words = {"utils", "util", "helpers", "helper", "misc", "common", "core"}
    assert not [name_of(path) for path in PYTHON if path.stem in empty_words]
