"""Shared options: what they mean together."""

import pytest

from flashsmith import DType
from flashsmith.base.errors import ArgumentError
from flashsmith.cli.options import configs_of, problem_of
from flashsmith.cli.output import cell_text, show

GIVEN = {
    "batch": 2,
    "heads": 6,
    "kv_heads": None,
    "q_len": 100,
    "k_len": None,
    "d_head": 64,
    "dtype": DType.FP16,
    "facts": {},
}


def test_key_heads_and_key_length_follow_the_query_unless_given():
    problem = problem_of(**GIVEN)
    assert (problem.kv_heads, problem.k_len) == (6, 100)
    other = problem_of(**GIVEN | {"kv_heads": 3, "k_len": 7})
    assert (other.kv_heads, other.k_len) == (3, 7)


def test_a_diagonal_needs_a_causal_mask():
    with pytest.raises(ArgumentError, match="--diagonal is 0 without --causal"):
        problem_of(**GIVEN | {"facts": {"diagonal": 0}})
    assert problem_of(**GIVEN | {"facts": {"diagonal": 0, "causal": True}}).mask.diagonal == 0


def test_a_key_goes_before_kernels_and_kernels_before_the_default(monkeypatch):
    monkeypatch.setenv("KERNELS", "64,64")
    assert len(configs_of("prog", "tune")) == 7
    assert len(configs_of(None, "tune")) == 32
    monkeypatch.delenv("KERNELS")
    assert len(configs_of(None, "tune")) == 80


def test_no_rows_are_said_apart_from_data(capsys):
    show([], title="0 measurements")
    told = capsys.readouterr()
    assert (told.out, told.err) == ("", "0 measurements: no rows\n")
    show([], json=True)
    assert capsys.readouterr().out == "[]\n"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""),
        (True, "yes"),
        (False, "no"),
        (49152, "49,152"),
        (1.5, "1.500"),
        (512.25, "512.2"),
    ],
)
def test_a_cell_is_written_for_a_reader(value, text):
    assert cell_text(value) == text


def test_a_table_that_fits_stands_upright_and_one_that_does_not_lies_on_its_side(
    monkeypatch, capsys
):
    rows = [{"config": f"c{n}", "alpha": n, "b" * 20: n * 1000} for n in (1, 2, 3)]
    monkeypatch.setenv("COLUMNS", "60")
    show(rows)
    assert ["c2", "2", "2,000"] in [line.split() for line in capsys.readouterr().out.splitlines()]
    monkeypatch.setenv("COLUMNS", "30")
    show(rows)
    text = capsys.readouterr().out
    lines = [line.split() for line in text.splitlines()]
    assert ["config", "c2"] in lines
    assert ["b" * 20, "3,000"] in lines
    assert max(map(len, text.splitlines())) <= 30
