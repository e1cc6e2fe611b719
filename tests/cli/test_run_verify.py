"""`flashsmith run` and `flashsmith verify`: rows, options and exit codes."""

import json

import pytest
from typer.testing import CliRunner

from flashsmith.check import survey
from flashsmith.check.verdict import Verdict
from flashsmith.cli.main import app

SMALL = "(BF16, 64, 64, 32, 4): async+swizzled+load_2_2_2_tiles"
PLAIN = "(BF16, 64, 64, 32, 4): async+load_2_2_2_tiles"
UNBUILDABLE = "(FP16, 64, 64, 32, 8): load_0_0_0_tiles"


@pytest.fixture(autouse=True)
def emulated(monkeypatch):
    monkeypatch.setenv("FLASHSMITH_DEVICE", "emulator")
    monkeypatch.delenv("KERNELS", raising=False)


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def rows(done):
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_verify_checks_three_cases_of_a_configuration():
    found = rows(run("verify", SMALL, "--workers", 1, "--json"))
    assert [row["case"] for row in found] == ["ragged", "causal gqa", "masked rows"]
    for row in found:
        assert (row["config"], row["result"]) == (SMALL, "right")
        assert 0 < row["error"] <= row["allowed"]
        assert row["of_allowed"] == pytest.approx(row["error"] / row["allowed"], abs=1e-3)


def test_verify_takes_the_full_cases():
    assert len(rows(run("verify", SMALL, "--cases", "full", "--workers", 1, "--json"))) == 12


def test_verify_in_two_processes_gives_the_same_rows(pytestconfig):
    if pytestconfig.getoption("reseed") is not None:
        pytest.skip("--reseed moves the seeds of this process only")
    alone, both = (rows(run("verify", SMALL, "--workers", workers, "--json")) for workers in (1, 2))
    for row in (*alone, *both):
        del row["seconds"]
    assert alone == both


def test_verify_prints_a_table_and_a_count():
    done = run("verify", SMALL, "--workers", 1)
    assert done.exit_code == 0
    assert "verified on emulator" in done.stdout
    assert "3 right, 0 wrong, 0 cannot run here." in done.stderr


def test_verify_writes_csv():
    lines = run("verify", SMALL, "--workers", 1, "--csv").stdout.splitlines()
    assert lines[0].startswith("config,case,result,error,allowed")
    assert len(lines) == 4


def test_a_wrong_configuration_is_exit_code_1(monkeypatch):
    def wrong(device, config, case):
        return Verdict(case.name, False, 0.5, 0.01, "o[batch 0]", "o is too far from the truth")

    monkeypatch.setattr(survey, "check_case", wrong)
    monkeypatch.setenv("COLUMNS", "200")  # a narrow terminal folds the reason over several lines
    done = run("verify", SMALL, "--workers", 1)
    assert done.exit_code == 1
    assert "0 right, 3 wrong" in done.stderr
    assert "o is too far" in done.stdout
    done = run("run", SMALL, "--json")
    assert done.exit_code == 1
    assert json.loads(done.stdout)[0]["result"] == "wrong"


def test_what_cannot_run_is_listed_with_its_reason_and_is_not_wrong():
    (row, *_) = rows(run("verify", UNBUILDABLE, "--workers", 1, "--json"))
    assert row["result"] == "cannot run"
    assert "mma.sync works on 16 rows" in row["reason"]
    (row,) = rows(run("run", UNBUILDABLE, "--json"))
    assert row["result"] == "cannot run"


def test_a_kind_of_cases_that_does_not_exist_is_refused():
    done = run("verify", SMALL, "--cases", "some")
    assert "--cases is 'some'; it must be one of quick, full" in str(done.exception)


def test_run_checks_the_problem_that_is_given():
    options = ("--batch", 2, "--heads", 4, "--kv-heads", 2, "--q-len", 33, "--k-len", 99)
    (row,) = rows(run("run", SMALL, *options, "--d-head", 40, "--causal", "--lse", "--json"))
    assert (row["config"], row["checked_on"], row["result"]) == (SMALL, "problem", "right")
    assert "median_us" not in row


def test_run_says_which_problem_it_ran():
    done = run("run", SMALL, "--heads", 4, "--kv-heads", 2, "--q-len", 33, "--causal")
    assert "batch 1, heads 4:2, length 33, d 64, causal, BF16, on emulator" in done.stdout


def test_run_takes_several_lengths_and_says_which_a_row_is_of():
    done = run("run", SMALL, "--q-len", "33,70", "--k-len", 99, "--json")
    assert [(row["config"], row["q_len"], row["result"]) for row in rows(done)] == [
        (SMALL, 33, "right"),
        (SMALL, 70, "right"),
    ]
    done = run("run", SMALL, "--q-len", "33,x")
    assert "--q-len is '33,x'; it must be a list of numbers above 0" in str(done.exception)
    (row,) = rows(run("run", SMALL, "--q-len", 0, "--k-len", 99, "--json"))
    assert row["result"] == "right"


def test_a_large_problem_is_checked_on_the_quick_cases():
    ran = run("run", SMALL, "--q-len", 8192, "--json")
    (row,) = rows(ran)
    assert row["checked_on"] == "3 quick cases"
    assert "was not run: the emulator checked small cases in its place" in ran.stderr


def test_counters_show_that_swizzling_removes_bank_conflicts():
    found = [
        rows(run("run", config, "--q-len", 64, "--k-len", 96, "--counters", "--json"))[0]
        for config in (SMALL, PLAIN)
    ]
    swizzled, plain = (row["bank_conflicts"] for row in found)
    assert swizzled == 0
    assert plain > 0
    assert found[0]["warp_instructions"] > 0


def test_many_counters_are_shown_on_their_side_and_whole(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    arguments = ("--q-len", 64, "--k-len", 96, "--counters")
    table = run("run", SMALL, *arguments).stdout
    (row,) = rows(run("run", SMALL, *arguments, "--json"))
    assert max(map(len, table.splitlines())) <= 100
    lines = [line.split() for line in table.splitlines()]
    for name in ("warp_instructions", "async_copy_instructions", "global_load_bytes"):
        assert [name, f"{row[name]:,}"] in lines


def test_a_seed_gives_another_schedule_and_the_same_answer():
    (row,) = rows(run("run", SMALL, "--q-len", 64, "--k-len", 96, "--seed", 3, "--json"))
    assert row["result"] == "right"


def test_counters_without_the_emulator_are_refused():
    done = run("run", SMALL, "--device", "cuda", "--counters")
    assert "only the emulator has them" in str(done.exception)


def test_a_device_that_does_not_exist_is_refused():
    done = run("run", SMALL, "--device", "tpu")
    assert "device is 'tpu'; it must be 'cuda' or 'emulator'" in str(done.exception)


def test_run_takes_the_options_of_a_problem_in_both_spellings():
    rows = [
        json.loads(run("run", SMALL, "--device", "emulator", *words, "--json").stdout)
        for words in (("--seq-len", 70, "--d-head", 56), ("--seq-lens", 70, "--d-heads", 56))
    ]
    assert rows[0] == rows[1]
