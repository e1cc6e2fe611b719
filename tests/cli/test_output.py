"""Rows: one line each in a table, what is constant above it, and nobody's text steers anything."""

import csv
import io
import json
import time

import pytest

from flashsmith.base.plain_text import csv_text, plain
from flashsmith.cli.output import show
from flashsmith.cli.table import cell_text, table_lines
from flashsmith.kernels import get_kernel_configs

LADDER = [config.short_form() for config in get_kernel_configs("prog")]
WIDE = [config.short_form() for config in get_kernel_configs("hopper")]


def lines_of(rows, width=80, **more):
    return table_lines(rows, list(rows[0]), width=width, **more)


def words_of(lines):
    return [line.split() for line in lines]


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
        (999_999_999, "999,999,999"),
        (1_220_000_000, "1.22 billion"),
        (999_999_999_999, "1 trillion"),
        (2_502_965_877_277, "2.5 trillion"),
        (10**18, "1e+18"),
        (1.5, "1.500"),
        (0.0, "0.000"),
        (0.000412, "0.000412"),
        (512.25, "512.2"),
    ],
)
def test_a_cell_is_written_for_a_reader(value, text):
    assert cell_text(value) == text


def test_what_all_rows_share_stands_above_the_table():
    rows = [{"name": f"r{n}", "threads": 128, "registers": n, "note": None} for n in range(4)]
    lines = lines_of(rows, title="4 kernels")
    assert lines[:3] == ["4 kernels", "threads 128", ""]
    assert lines[3].split() == ["name", "registers"]
    assert not any("note" in line for line in lines)


def test_one_row_keeps_its_columns():
    assert lines_of([{"name": "a", "threads": 128}])[0].split() == ["name", "threads"]


def test_configurations_are_told_by_what_varies():
    rows = [{"config": text, "registers": 150 + n} for n, text in enumerate(LADDER)]
    lines = lines_of(rows, title="the ladder")
    assert lines[1] == "sm80_forward, dtype FP16, d_head 128, B_r 64, B_c 64, n_warps 4, async"
    assert lines[3].split() == [
        *("eager", "swizzled", "load_tiles", "buffer", "opt_softmax", "registers")
    ]
    assert lines[-2].split() == ["yes", "yes", "0/2/2", "–", "yes", "156"]


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("configs", [LADDER, WIDE], ids=["ladder", "wide"])
def test_a_row_is_one_line(configs, width):
    facts = {"problem": "4x16/16 4096x4096 d128 full", "bits": "c0ffee00"}
    rows = [
        {"config": text, **facts, "median_us": n * 1.5, "note": "x" * n}
        for n, text in enumerate(configs)
    ]
    lines = lines_of(rows, width)
    rule = next(n for n, line in enumerate(lines) if line.startswith("─"))
    body = lines[rule + 1 : rule + 1 + len(rows)]
    assert max(map(len, body)) <= width
    assert len({line for line in body if line}) == len(rows)


def test_a_table_that_cannot_have_columns_tells_changes_against_its_first_row():
    rows = [{"config": text, "us": 1.0 + n} for n, text in enumerate(WIDE[:4])]
    lines = lines_of(rows, 20)
    assert WIDE[0] in lines  # whole, to be copied
    assert lines[lines.index("") + 1 :][:2] == ["against_the_", "first            us"]
    assert "no late_draw  3.000" in lines


def test_a_second_configuration_is_told_by_its_difference_to_the_rows_own():
    rows = [
        {"config": text, "same_as": other}
        for text, other in zip(LADDER[1:4], (LADDER[0], None, LADDER[3]), strict=True)
    ]
    assert "no swizzled" in lines_of(rows)[-4]
    assert lines_of(rows)[-2].endswith("the same")


def test_ten_rows_are_shown_unless_all_are_asked_for():
    rows = [{"number": n, "square": n * n} for n in range(40)]
    short = lines_of(rows, every=False)
    assert "30 more: --all" in short
    assert ["9", "81"] in words_of(short)
    assert ["10", "100"] not in words_of(short)
    assert ["39", "1,521"] in words_of(lines_of(rows))
    assert not any("more" in line for line in lines_of(rows[:10], every=False))


def test_json_and_csv_have_every_row(capsys):
    rows = [{"number": n} for n in range(40)]
    show(rows, json=True, every=False)
    assert len(json.loads(capsys.readouterr().out)) == 40
    show(rows, csv=True, every=False)
    assert len(capsys.readouterr().out.splitlines()) == 41


def test_texts_without_room_are_cut_and_said_to_be():
    rows = [{"name": f"a{n}", "reason": f"{n} " + "long " * 40} for n in range(5)]
    lines = lines_of(rows)
    assert sum("…" in line for line in lines) == 6
    assert "Texts that end in … are whole in --csv." in lines


def test_prose_is_folded_and_nothing_of_it_is_lost():
    advice = "word " * 30 + "end"
    rows = [{"what": f"w{n}", "to_get_it": f"{n} {advice}"} for n in range(5)]
    lines = lines_of(rows, prose=["to_get_it"])
    assert sum("end" in line for line in lines) == 5
    assert max(map(len, lines)) <= 80


def test_columns_without_room_are_named():
    rows = [{f"column_{c}": 1000 * c + n for c in range(16)} for n in range(12)]
    assert any("columns; --csv shows all" in line for line in lines_of(rows, 60))
    one = [{"text": f"{n}" * 9, "bits": f"c0ffee0{n}", "n": n} for n in range(5)]
    assert "No room for bits; --csv shows all." in " ".join(lines_of(one, 18))


def test_few_rows_that_are_too_wide_lie_on_their_side():
    rows = [{"config": f"c{n}", "alpha": n, "b" * 20: n * 1000} for n in (1, 2, 3)]
    assert ["c2", "2", "2,000"] in words_of(lines_of(rows, 60))
    turned = lines_of(rows, 50)
    rows[0]["gamma"] = "g" * 40
    turned = lines_of(rows, 50)
    assert ["config", "c1", "c2", "c3"] in words_of(turned)


@pytest.mark.parametrize("width", [1, 8, 20])
def test_no_width_is_too_small(width):
    rows = [{"config": text, "bytes": 10**n, "note": "n " * n} for n, text in enumerate(LADDER)]
    assert lines_of(rows, width, title="a title")
    assert lines_of(rows[:1], width, title="a title")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\x1b[31mred\x1b]0;title\x07", "a\\x1b[31mred\\x1b]0;title\\x07"),
        ("two\nlines\tand\ra return", "two lines and a return"),
        ("right\u202eto left", "right\\u202eto left"),
        ("half of a pair \ud800", "half of a pair \\ud800"),
        ("µs × 2 – “as it is”", "µs × 2 – “as it is”"),
    ],
)
def test_what_does_not_print_is_written_as_its_escape(text, shown):
    assert plain(text) == shown
    assert "\x1b" not in "".join(lines_of([{"note": text}, {"note": "other"}]))


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1+1", "\r=1+1", " =1"])
def test_a_text_of_csv_is_never_computed(text, capsys):
    assert csv_text(text).startswith("'")
    show([{"note": text, "number": -1.5, "none": None}], csv=True)
    ((note, number, none),) = list(csv.reader(io.StringIO(capsys.readouterr().out)))[1:]
    assert note.startswith("'")
    assert (float(number), none) == (-1.5, "")


def test_a_short_form_is_the_same_in_csv(capsys):
    show([{"config": text} for text in LADDER], csv=True)
    read = list(csv.reader(io.StringIO(capsys.readouterr().out)))[1:]
    assert [row[0] for row in read] == LADDER


def test_a_long_text_is_not_read_again_and_again():
    rows = [{"reason": "a" * 8_000 + "(" + "," * 8_000}] * 2
    began = time.process_time()
    table_lines(rows, ["reason"], width=80)
    assert time.process_time() - began < 1.0  # a pattern that tries again takes ten times as long


def test_no_text_of_a_table_steers_the_terminal():
    rows = [{"gpu": "\x1b[31mred", "n": n, "reason": f"\x1b]0;{n}"} for n in range(3)]
    for width in (20, 80, 160):
        lines = table_lines(rows, list(rows[0]), width=width, title="a\x1b[2J title\nof two lines")
        assert "\x1b" not in "\n".join(lines)
        assert lines[:2] == ["a\\x1b[2J title", "of two lines"]


def test_problems_that_would_be_cut_are_told_by_what_tells_them_apart():
    lengths = {1024: 16, 4096: 4}
    rows = [
        {"problem": f"batch {batch}, heads 16, length {n}, d 64, {mask}, BF16", "peer": "x" * 30}
        for n, batch in lengths.items()
        for mask in ("full", "causal")
    ]
    rows[0]["peer"] = "y"
    lines = table_lines(rows, ["problem", "peer"], width=60)
    assert lines[0] == "problem heads 16, d 64, BF16"
    assert [line.partition("  ")[0] for line in lines[4:8]] == [
        f"length {n}, {mask}" for n in lengths for mask in ("full", "causal")
    ]
    assert "Problems are told by what tells them apart; they are whole" in lines[8]
    wide = table_lines(rows, ["problem", "peer"], width=120)
    assert wide[2].startswith("batch 16, heads 16, length 1024, d 64, full, BF16  ")
