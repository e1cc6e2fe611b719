"""`flashsmith tune`: options that decide what is done, and what it writes for others."""

import json
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
from beside import HERE
from tuning_process import CANDIDATES, TARGET, tune
from typer.testing import CliRunner

from flashsmith.base import settings
from flashsmith.base.errors import ArgumentError
from flashsmith.check.cases import full_cases
from flashsmith.cli.main import app
from flashsmith.cli.verbs import tune as tune_verb
from flashsmith.cli.verbs.tune_report import rows_of, say_end, title_of, write_table
from flashsmith.compile.ahead_of_time.bundle import open_bundle
from flashsmith.compile.compiler import compile_kernel
from flashsmith.compile.nvrtc.library import find_nvrtc
from flashsmith.kernels.plans import needs_of
from flashsmith.kernels.varying import changed
from flashsmith.tuner.run import candidates
from flashsmith.tuner.run.machines import local_pool
from flashsmith.tuner.run.target import target_here
from flashsmith.tuner.run.tune import Tuned, seconds_of
from flashsmith.tuner.run.tuner import Tuner
from flashsmith.tuner.store.database import ResultStore
from flashsmith.tuner.store.exchange import choosable_table, read_lines
from flashsmith.tuner.store.outcome import Wrong
from flashsmith.tuner.workers.executor import Answer
from flashsmith.tuner.workers.pool import WorkerPool


def run(*arguments):
    ran = CliRunner().invoke(app, ["tune", *map(str, arguments)])
    if ran.exception and not isinstance(ran.exception, SystemExit):
        raise ran.exception
    return ran


@pytest.fixture
def tuned(tmp_path):
    """An open store after a run on made-up times."""
    with (
        ResultStore(tmp_path / "r.sqlite") as store,
        WorkerPool(2, "quick:evaluate", [HERE] * 2) as pool,
    ):
        yield store, tune(store, pool)[0]


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("2m", 120), ("1.5h", 5400)])
def test_a_budget_is_a_time(text, seconds):
    assert seconds_of(text) == seconds


@pytest.mark.parametrize(
    ("running", "left"),
    [(1.0, 140 - 1 - 7), (20.0, 140 - 20 - 20), (139.0, 7)],
    ids=["at once", "after slow imports", "hardly at all"],
)
def test_a_budget_counts_from_the_start_of_the_process_and_leaves_time_for_the_page(
    monkeypatch, running, left
):
    given = {}

    def tune(*problems, **more):
        given.update(more)
        raise KeyboardInterrupt

    monkeypatch.setattr(tune_verb, "seconds_running", lambda: running)
    monkeypatch.setattr(tune_verb, "tune", tune)
    CliRunner().invoke(app, ["tune", "smoke", "--device", "emulator", "--budget", "140s"])
    assert given["budget"] == pytest.approx(left)


def test_a_process_knows_how_long_it_has_been_running():
    """Longer than since its first import of ours."""
    code = (
        "import time; time.sleep(0.3); from flashsmith.cli.started import seconds_running; "
        "print(seconds_running())"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    least = 0.3 if sys.platform == "linux" else 0.0
    assert least <= float(ran.stdout) < 60


def test_a_budget_without_a_unit_is_refused():
    with pytest.raises(
        ArgumentError, match="budget is '90'; it must be a time above 0, such as 90s"
    ):
        seconds_of("90")


@pytest.mark.parametrize("option", [("--export", "t"), ("--bundle", "t"), ("--search", "optuna")])
def test_what_is_about_times_is_refused_without_a_gpu(option, tmp_path):
    with pytest.raises(ArgumentError, match=f"{option[0]} is given without a GPU"):
        run("64,32", "--device", "emulator", "--store", tmp_path / "r.sqlite", *option)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--executor", "dask"], "executor is 'dask'; it must be local or ray"),
        (["--address", "auto"], "address is given without a cluster"),
        (["--gpu-type", "H200"], "gpu_type is given without a cluster"),
        (["--search", "random"], "--search is 'random'; it must be exhaustive or optuna"),
        (["--trials", "9"], "--trials is 9 with an exhaustive search"),
        (["--device", "cuda", "--arch", "sm_80"], "arch is 'sm_80' on a machine with a GPU"),
    ],
)
def test_options_that_contradict_each_other_are_refused(arguments, says, tmp_path):
    with pytest.raises(ArgumentError, match=says):
        run("64,32", "--store", tmp_path / "r.sqlite", *arguments)


def test_as_many_workers_as_asked_for_verify(tmp_path):
    with local_pool(target_here("emulator"), 3) as pool:
        assert len(pool._workers) == 3


def test_a_search_screens_configurations_beyond_its_start_and_keeps_them(tmp_path):
    pytest.importorskip("optuna", reason="Optuna is an optional extra")
    from flashsmith.tuner.run.whole_space import search_space

    start = [candidate.config for candidate in CANDIDATES[:2]]
    with (
        ResultStore(tmp_path / "r.sqlite") as store,
        WorkerPool(2, "quick:evaluate", [HERE] * 2) as pool,
    ):
        tuner = Tuner(TARGET, store, pool)
        found = search_space(tuner, start, CANDIDATES[0].problem, trials=6)
        assert len(found) == 6
        assert {m.key for m in store.all()} == {m.key for m in found.values()}
        assert {c.config for c in found} > set(start)
        over = Tuner(TARGET, store, pool, deadline=1.0)
        assert search_space(over, start, CANDIDATES[0].problem, trials=6) == {}


def test_without_a_gpu_rows_are_in_predicted_order(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    one, other = CANDIDATES[1].config.short_form(), CANDIDATES[0].config.short_form()
    (tmp_path / "two").write_text(f"{one}\n{other}\n")
    arguments = ("--seq-lens", "512", "--device", "emulator", "--store", tmp_path / "r.sqlite")
    ran = run("@two", *arguments, "--json")
    rows = json.loads(ran.stdout)
    assert [(row["predicted_place"], row["config"]) for row in rows] == [(1, other), (2, one)]
    assert all(row["outcome"] == "Verified" for row in rows)
    assert "nothing is timed" in ran.stderr
    assert "median_us" not in rows[0]


def test_with_a_gpu_rows_are_in_measured_order(tuned):
    _, results = tuned
    found = Tuned({CANDIDATES[0].problem: results}, {}, 3, 0, TARGET)
    rows = rows_of(found)
    assert rows[0]["winner"]
    assert "predicted_place" not in rows[0]
    assert title_of(found) == "measured on a GPU of tests"


def test_a_winner_without_a_valid_last_race_is_said_to_be_one(tuned, tmp_path, capsys):
    _, (winner, *others) = tuned
    screened = replace(winner.measurement.key, protocol="screen")
    unraced = replace(winner, measurement=replace(winner.measurement, key=screened))
    for first, said in ((winner, False), (unraced, True)):
        say_end(Tuned({CANDIDATES[0].problem: [first, *others]}, {}, 3, 0, TARGET), tmp_path, 1.0)
        assert ("its last race was void" in capsys.readouterr().err) is said


def test_the_last_lines_name_the_first_three_and_the_file(tuned, tmp_path, capsys):
    _, results = tuned
    problem = CANDIDATES[0].problem
    say_end(Tuned({problem: results}, {}, 3, 0, TARGET), tmp_path, 1.0, "open x.html")
    *_, first, second, third, again, last = capsys.readouterr().err.splitlines()
    assert first.startswith("  1. ")
    assert first.endswith(f" µs  {results[0].candidate.config.short_form()}")
    assert second.startswith("  2. +")
    assert third.startswith("  3. +")
    configs = [result.candidate.config for result in results[:3]]
    assert changed(configs[0], configs[1])
    assert second.endswith(f"the first with {changed(configs[0], configs[1])}")
    assert third.endswith(f"the first with {changed(configs[0], configs[2])}")
    assert again.startswith("Again: flashsmith ")
    assert last == f"Kept in {tmp_path}; open x.html."


def test_of_many_problems_the_last_lines_name_the_winners(tuned, tmp_path, capsys):
    _, results = tuned
    many = {replace(CANDIDATES[0].problem, batch=n): results for n in range(1, 13)}
    say_end(Tuned(many, {}, 3, 0, TARGET), tmp_path, 1.0)
    told = capsys.readouterr().err
    assert told.count("  1. ") == 10
    assert "  2. " not in told
    assert "2 more problems: flashsmith results list" in told


def test_a_run_in_which_nothing_is_right_is_a_failed_one(tuned):
    _, (winner, *others) = tuned
    wrong = replace(winner, measurement=replace(winner.measurement, outcome=Wrong("far off")))
    assert Tuned({CANDIDATES[0].problem: [wrong]}, {}, 0, 0, TARGET).is_all_wrong
    some = {CANDIDATES[0].problem: [wrong, winner, *others]}
    assert not Tuned(some, {}, 0, 0, TARGET).is_all_wrong
    assert not Tuned({}, {}, 0, 0, TARGET).is_all_wrong


def test_the_gates_kernels_are_compiled_side_by_side(monkeypatch):
    asked = []
    monkeypatch.setattr(candidates, "compile_many", asked.append)
    config = CANDIDATES[0].config
    candidates.compile_for_gate(config, TARGET)
    (jobs,) = asked
    wanted = {needs_of(config, case.problem) for case in full_cases(config)}
    assert {job.needs for job in jobs} == wanted
    assert len(jobs) == len(wanted) > 3


def test_they_are_compiled_before_a_worker_asks_for_them(monkeypatch, tmp_path):
    order = []

    class Pool:
        def run(self, jobs, seconds, on_reply):
            order.append(jobs[0]["kind"])
            on_reply(0, Answer({"outcome": "Verified", "fingerprint": ""}))

    monkeypatch.setattr(
        "flashsmith.tuner.run.tuner.compile_for_gate", lambda config, target: order.append(config)
    )
    compiled = replace(CANDIDATES[0], kernels=(SimpleNamespace(code="c0de"),))
    with ResultStore(tmp_path / "r.sqlite") as store:
        tuner = Tuner(TARGET, store, Pool(), second_opinion=lambda config: "")
        assert tuner.passes_gate(compiled, "final")
    assert order == [compiled.config, "gate"]


def test_the_table_holds_the_winner_alone(tuned, tmp_path):
    store, results = tuned
    write_table(store, TARGET.gpu, tmp_path / "t.jsonl", tmp_path / "k.bundle")
    table = read_lines(tmp_path / "t.jsonl")
    assert [m.key.config for m in table] == [results[0].candidate.config.short_form()]
    assert all(m.gate for m in table)
    kernels = open_bundle(tmp_path / "k.bundle")
    assert len(kernels.configs()) == 2  # in both element types
    assert kernels.arches() == ["sm_90a"]


def test_the_table_is_of_one_gpu_and_of_kernels_as_they_are(tuned):
    from dataclasses import replace

    store, results = tuned
    best = store.get(results[0].measurement.key)
    config, problem = results[0].candidate.config, results[0].candidate.problem
    needs = needs_of(config, problem)
    mine = replace(best.key, compiler=find_nvrtc().compiler)
    current = replace(best, key=replace(mine, code=compile_kernel(config, needs, "sm_90a").code))
    changed = replace(best, key=replace(mine, code="of another version"))
    assert choosable_table([best, current, changed], TARGET.gpu) == [best, current]
    assert choosable_table([best], "another GPU") == []


@pytest.mark.parametrize(("visible", "sees"), [("", "1"), ("4, 7", "7"), ("GPU-a,GPU-b", "GPU-b")])
def test_a_worker_of_the_second_gpu_sees_that_one_alone(monkeypatch, visible, sees):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert settings.only_gpu(1) == {"CUDA_VISIBLE_DEVICES": sees}


def test_there_is_a_worker_for_each_gpu_of_the_name(monkeypatch):
    from flashsmith.tuner.workers import pool as worker_pool

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(worker_pool, "gpu_names", lambda: ["H200", "A100", "H200"])
    seen = [e["CUDA_VISIBLE_DEVICES"] for e in worker_pool.one_worker_a_gpu("H200")]
    assert seen == ["0", "2"]
