"""Suites: every shipped one reads, and a wrong one says what is wrong."""

import pytest

from flashsmith.base.dtypes import DType
from flashsmith.base.errors import ArgumentError
from flashsmith.bench.suite import of_lengths, of_widths, read_suite, suite_names

SHAPE = "[[shape]]\nname='x'\nbatch=1\nheads=3\nkv_heads=1\nd_head=64\n"


def test_the_papers_grid_is_36_problems_of_16k_tokens():
    suite = read_suite("paper", DType.BF16)
    assert len(suite.shapes) == 36
    for shape in suite.shapes:
        problem = shape.problem
        assert problem.batch * problem.q_len == 16384
        assert problem.heads * problem.d_head == 2048


@pytest.mark.parametrize("name", suite_names())
def test_every_shipped_suite_reads_in_both_dtypes(name):
    for dtype in DType:
        suite = read_suite(name, dtype)
        assert suite.about
        assert {shape.problem.dtype for shape in suite.shapes} == {dtype}


def test_a_suite_can_be_held_to_some_of_its_lengths():
    suite = of_lengths(read_suite("paper", DType.BF16), [1024, 16384])
    assert len(suite.shapes) == 12
    assert {shape.problem.q_len for shape in suite.shapes} == {1024, 16384}
    with pytest.raises(ArgumentError, match="names 3000; those of paper are 512, 1024"):
        of_lengths(read_suite("paper", DType.BF16), [1024, 3000])


def test_a_suite_can_be_held_to_some_of_its_widths():
    suite = of_lengths(of_widths(read_suite("paper", DType.BF16), [64, 128]), [1024])
    assert {(s.problem.d_head, s.problem.q_len) for s in suite.shapes} == {(64, 1024), (128, 1024)}
    with pytest.raises(ArgumentError, match="--d-heads names 96; those of paper are 64, 128, 256"):
        of_widths(read_suite("paper", DType.BF16), [96])


def test_models_have_grouped_heads():
    assert any(s.problem.heads != s.problem.kv_heads for s in read_suite("llm", DType.BF16).shapes)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("nonsense = [", "is not a TOML file"),
        ("about = 'empty'", "holds no shapes"),
        ("[[grid]]\nd_heads = [64]", "are missing or unknown: masks, seq_lens, tokens, width;"),
        (f"{SHAPE}length=9\nmask='band'", "mask is 'band'; it must be full or causal"),
        (f"{SHAPE}length={10**400}\nmask='full'", r"mine\.toml: q_len is an integer of 1,329 bits"),
        (f"{SHAPE}length={'9' * 5000}\nmask='full'", "is not a TOML file: Exceeds the limit"),
        (
            f"{SHAPE}length=2.5\nmask='full'",
            r"mine\.toml: q_len is 2\.5; it must be an integer of at least 0",
        ),
        (f"{SHAPE}length=9\nmask=['full']", "has a field of the wrong type"),
        (f"x = {'[' * 10_000}", "is not a suite: it is nested too deeply"),
        ("grid = 'x'", "missing or unknown: .*tokens, width, x;"),
    ],
)
def test_a_wrong_file_is_refused_by_what_is_wrong(tmp_path, text, says):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(ArgumentError, match=says):
        read_suite(str(path), DType.BF16)


@pytest.mark.parametrize(
    "text",
    [
        "grid=5",
        "grid=[5]",
        "[[grid]]\nd_heads=[0]\nseq_lens=[9]\nmasks=['full']\ntokens=1\nwidth=1",
    ],
)
def test_a_field_of_a_wrong_type_is_refused_with_the_file(tmp_path, text):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(ArgumentError, match=r"mine\.toml has a field of the wrong type"):
        read_suite(str(path), DType.BF16)


def test_an_unknown_suite_names_the_known_and_the_nearest():
    with pytest.raises(
        ArgumentError, match=r"llm, models, paper, quick, serve .*did you mean paper"
    ):
        read_suite("papper", DType.BF16)
