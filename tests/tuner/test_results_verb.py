"""`flashsmith results`: each action works on the file that is named, or says what it wants."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from tuning_process import CONFIGS, PROBLEM
from typer.testing import CliRunner

from flashsmith.base.errors import ArgumentError, ConfigError, DamagedFile
from flashsmith.cli.main import app
from flashsmith.compile.compiler import compile_kernel
from flashsmith.compile.nvrtc.library import find_nvrtc
from flashsmith.kernels.plans import needs_of
from flashsmith.tuner.store.database import ResultStore
from flashsmith.tuner.store.exchange import read_lines
from flashsmith.tuner.store.measurement import Measurement, MeasurementKey
from flashsmith.tuner.store.outcome import Timed, Wrong
from flashsmith.tuner.store.version_0_1 import UNKNOWN

TWICE = Path(__file__).parents[2] / "benchmarks" / "results" / "h200_twice"
KEY = MeasurementKey(
    "NVIDIA H200", "sm_90a", "580", "nvrtc", "", CONFIGS[0].short_form(), PROBLEM, "final"
)
FAST = Measurement(KEY, Timed(100.0, 99.0, 101.0, 31, "aa11"), gate=True, when="2026")
KERNEL = compile_kernel(CONFIGS[0], needs_of(CONFIGS[0], PROBLEM), "sm_90a")
OTHER = Measurement(replace(KEY, config=CONFIGS[1].short_form()), Wrong("far off"))


@pytest.fixture
def store(tmp_path):
    path = tmp_path / "r.sqlite"
    with ResultStore(path) as opened:
        opened.add_all([FAST, OTHER])
    return path


def run(*arguments):
    ran = CliRunner().invoke(app, ["results", *map(str, arguments)])
    if ran.exception and not isinstance(ran.exception, SystemExit):
        raise ran.exception
    assert ran.exit_code == 0, ran.output
    return ran


def test_list_shows_every_measurement(store):
    rows = json.loads(run("list", "--store", store, "--json").stdout)
    assert [(row["outcome"], row["median_us"], row["choosable"]) for row in rows] == [
        ("Timed", 100.0, True),
        ("Wrong", None, False),
    ]
    assert not any(row["imported"] for row in rows)
    assert rows[1]["reason"] == "far off"


def test_show_is_about_one_configuration(store):
    rows = json.loads(run("show", KEY.config, "--store", store, "--json").stdout)
    assert [row["config"] for row in rows] == [KEY.config]


def test_diff_shows_what_got_slower(store, tmp_path):
    later = tmp_path / "later.sqlite"
    slower = replace(FAST, key=replace(KEY, driver="590"), outcome=Timed(110.0, 1, 1, 31, "aa11"))
    with ResultStore(later) as opened:
        opened.add(slower)
    rows = json.loads(run("diff", store, later, "--json").stdout)
    assert [(row["before_us"], row["after_us"]) for row in rows] == [(100.0, 110.0)]
    assert rows[0]["times_as_fast"] == pytest.approx(100 / 110)
    title = " ".join(run("diff", store, later).stdout.split())
    assert "times_as_fast is before over after: above 1, the second file is faster" in title


def run_of(path, *times, winner=0):
    """A results file with the finals of three configurations; the winner passed the gate."""
    with ResultStore(path) as opened:
        for number, us in enumerate(times):
            key = replace(KEY, config=CONFIGS[number].short_form())
            opened.add(Measurement(key, Timed(us, us, us, 31, "aa11"), gate=number == winner))
    return path


@pytest.mark.parametrize(
    ("second", "gaps", "verdict"),
    [
        ((101.0, 103.0), (0.0, 0.0), "1 with the same pick, 0 with another.*the runs agree"),
        ((101.0, 100.5), (0.004, 0.00498), "0 with the same pick, 1 with.*0.50%.*the runs agree"),
        ((103.0, 100.0), (0.004, 0.03), "0 with another.*at most 3.00%.*the runs do NOT agree"),
    ],
)
def test_picks_of_two_runs_are_held_against_each_runs_own_times(tmp_path, second, gaps, verdict):
    first = run_of(tmp_path / "a.sqlite", 100.0, 100.4)
    winner = second.index(min(second))
    later = run_of(tmp_path / "b.sqlite", *second, winner=winner)
    ran = run("picks", first, later, "--json")
    (row,) = json.loads(ran.stdout)
    assert row["before"] == CONFIGS[0].short_form()
    assert row["after"] == ("the same" if winner == 0 else CONFIGS[1].short_form())
    assert (row["gap_before"], row["gap_after"]) == pytest.approx(gaps, abs=1e-5)
    assert row["agrees"] is ("NOT" not in verdict)
    assert re.search(verdict, ran.stderr)


def test_a_pick_that_the_other_run_did_not_time_does_not_agree(tmp_path):
    first = run_of(tmp_path / "a.sqlite", 100.0)
    with ResultStore(tmp_path / "b.sqlite") as opened:
        opened.add(replace(FAST, key=replace(KEY, config=CONFIGS[1].short_form())))
    (row,) = json.loads(run("picks", first, tmp_path / "b.sqlite", "--json").stdout)
    assert (row["gap_before"], row["gap_after"], row["agrees"]) == (None, None, False)


def test_picks_of_no_common_problem_are_no_agreement(tmp_path):
    first = run_of(tmp_path / "a.sqlite", 100.0)
    with ResultStore(tmp_path / "b.sqlite") as opened:
        opened.add(replace(FAST, key=replace(KEY, problem=replace(PROBLEM, batch=7))))
    ran = run("picks", first, tmp_path / "b.sqlite", "--json")
    assert json.loads(ran.stdout) == []
    assert "no tuned problem in common" in ran.stderr
    assert "agree" not in ran.stderr


def test_ratios_of_a_benchmark_are_ours_over_the_peers(tmp_path):
    before, after = (TWICE / f"quick_{n}.jsonl" for n in (1, 2))
    rows = json.loads(run("diff", before, after, "--json").stdout)
    assert {(row["contender"], row["against"]) for row in rows} == {
        ("flashsmith", "cuDNN"),
        ("flashsmith", "FlashAttention-2 (torch)"),
    }
    assert all(row["before_low"] < row["before_ratio"] < row["before_high"] for row in rows)
    assert all(row["before_ratio"] > 1 for row in rows)
    assert "above 1 is faster" in run("diff", before, after).stdout


def test_times_and_a_benchmarks_records_cannot_be_compared(store, tmp_path):
    other = tmp_path / "empty.jsonl"
    other.write_text("")
    with pytest.raises(ArgumentError, match="picks takes two results of `tune`; give two"):
        run("picks", store, other)


def test_what_is_exported_can_be_imported_elsewhere_once(store, tmp_path):
    lines, elsewhere = tmp_path / "mine.jsonl", tmp_path / "e.sqlite"
    run("export", "--store", store, "-o", lines)
    assert read_lines(lines) == [FAST, OTHER]
    assert "2 of 2 measurements are new" in run("import", lines, "--store", elsewhere).stderr
    assert "0 of 2 measurements are new" in run("import", lines, "--store", elsewhere).stderr
    with ResultStore(elsewhere) as opened:
        assert opened.all() == [FAST, OTHER]
        assert all(m.is_imported for m in opened.all())


def test_merge_takes_a_results_file(store, tmp_path):
    run("merge", store, "--store", tmp_path / "m.sqlite")
    with ResultStore(tmp_path / "m.sqlite") as opened:
        assert len(opened.all()) == 2


def test_a_bad_line_imports_nothing(store, tmp_path):
    lines = tmp_path / "bad.jsonl"
    lines.write_text(f"{FAST.to_line()}\n{{}}\n")
    with pytest.raises(DamagedFile, match=r"bad.jsonl line 2: schema is 'None'"):
        run("import", lines, "--store", tmp_path / "e.sqlite")
    assert not (tmp_path / "e.sqlite").exists()


def test_prune_forgets_kernels_that_changed_and_no_others(store):
    with ResultStore(store) as opened:
        mine = replace(KEY, compiler=find_nvrtc().compiler)
        current = replace(FAST, key=replace(mine, code=KERNEL.code))
        opened.add(current)
        opened.add(replace(FAST, key=replace(mine, code="of another version")))
        opened.add(replace(FAST, key=replace(mine, code=f"{UNKNOWN}of version 0.1")))
        theirs = replace(FAST, key=replace(KEY, compiler="nvrtc 99", code="theirs"))
        opened.add(theirs)
    said = run("prune", "--store", store).stderr
    assert "2 measurements of changed kernels forgotten" in said
    assert "1 measurements were not checked: nvrtc 99 compiled their kernels" in said
    with ResultStore(store) as opened:
        assert opened.all() == [FAST, OTHER, current, theirs]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["forget"], "action is 'forget'; it must be list, show, diff"),
        (["export"], "export was given no file.*add -o FILE"),
        (["diff", "a.jsonl"], "diff was given 1 files; it takes 2"),
        (["diff", "a.jsonl", "b.jsonl"], "a.jsonl does not exist"),
        (["import", "missing.jsonl"], "missing.jsonl does not exist"),
        (["show"], "show was given 0 configurations; it takes 1"),
        (["list", "extra"], "list was given 1 files; it takes 0"),
        (["list", "-o", "x"], "-o is given for list; only export writes"),
        (["prune", "--json"], "prune and --json are both given"),
    ],
)
def test_what_is_missing_is_said(store, arguments, says):
    with pytest.raises(ArgumentError, match=says):
        run(*arguments, "--store", store)


def test_a_results_file_that_is_not_there_is_said_and_not_made(tmp_path):
    with pytest.raises(ArgumentError, match=r"none\.sqlite does not exist; .* tune first"):
        run("list", "--store", tmp_path / "none.sqlite")
    assert not list(tmp_path.iterdir())


def test_show_reads_any_spelling_of_a_configuration_and_says_when_there_is_nothing(store):
    loose = KEY.config.replace(", ", ",")
    assert json.loads(run("show", loose, "--store", store, "--json").stdout)
    absent = run("show", CONFIGS[2].short_form(), "--store", store, "--json")
    assert json.loads(absent.stdout) == []
    assert "holds no measurement of" in absent.stderr
    with pytest.raises(ConfigError, match="'nonsense' is not a configuration"):
        run("show", "nonsense", "--store", store)
