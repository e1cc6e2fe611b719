"""`flashsmith bench profile`: the original's line, its columns, join with records, refusals."""

import csv
import io
import json

import pytest
from report_records import record
from typer.testing import CliRunner

from flashsmith.base.errors import ArgumentError, DeviceMissing, StorageError
from flashsmith.bench.profile import REFERENCE, Profile
from flashsmith.bench.profile_groups import Profiled
from flashsmith.cli.main import app
from flashsmith.cli.verbs import profile as verb
from flashsmith.kernels import get_kernel_configs
from flashsmith.measure.record import append_records, read_records
from flashsmith.runtime.emulated import EmulatedDevice

TUNE = [c.short_form() for c in get_kernel_configs("tune") if c.d_head == 128]
METRICS = {"duration_us": 1000.0, "cycles": 1.5e6, "registers": 168.0, "l2_hit_pct": 93.254}


@pytest.fixture
def jobs(monkeypatch):
    """Jobs that the verb made; every kernel of them takes 1 ms."""
    made = []

    def compiled_ahead(job, device, progress):
        made.append(job)
        return job, ["x: no room"]

    def profile_groups(groups, watcher):
        found = Profiled()
        for group in groups:
            rows = [Profile(REFERENCE, group.job.tasks[0].problem, METRICS, None)] + [
                Profile(config.short_form(), task.problem, METRICS, 1.25)
                for task in group.job.tasks
                for config in task.configs
            ]
            found.profiles += rows
            watcher.finished(group, rows)
        return found

    monkeypatch.setattr(verb, "compiled_ahead", compiled_ahead)
    monkeypatch.setattr(verb, "profile_groups", profile_groups)
    monkeypatch.setattr(verb, "default_device", lambda name: EmulatedDevice("sm_90a"))
    monkeypatch.setattr(verb, "has_cuda", lambda: True)
    monkeypatch.setattr(verb, "find_ncu", lambda: "/usr/bin/ncu")
    return made


def run(*arguments, **environment):
    return CliRunner().invoke(app, ["profile", *arguments], env=environment)


def test_the_originals_line_profiles_the_tuning_set_at_every_length(jobs):
    lengths = "1024,2048,4096,8192,16384"
    ran = run(*("--seq-lens", lengths, "--d-heads", "128", "--runs", "1", "--csv"), KERNELS="tune")
    assert ran.exit_code == 0, ran.output
    (job,) = jobs
    assert job.runs == 1
    assert job.reference
    assert {task.problem.q_len for task in job.tasks} == {1024, 2048, 4096, 8192, 16384}
    for length in map(int, lengths.split(",")):
        tasks = [task for task in job.tasks if task.problem.q_len == length]
        assert {c.short_form() for task in tasks for c in task.configs} == set(TUNE)
        assert all(c.dtype == task.problem.dtype for task in tasks for c in task.configs)
    rows = list(csv.DictReader(io.StringIO(ran.stdout)))
    assert len(rows) == 5 + 5 * len(TUNE)  # ten problems in five groups
    assert rows[0]["config"] == REFERENCE
    assert {"duration_us", "cycles", "registers", "l2_hit_pct", "tflops"} < set(rows[1])
    assert rows[1]["times_as_fast"] == "1.25"
    assert rows[1]["l2_hit_pct"] == "93.25"
    assert "left out: x: no room" in ran.stderr


def test_options_reach_the_job(jobs):
    ran = run("prog", "--runs", "3", "--no-reference", "--causal", "--heads", "3", "--json")
    assert ran.exit_code == 0, ran.output
    (job,) = jobs
    assert (job.runs, job.reference) == (3, False)
    assert job.tasks[0].problem.causal
    assert job.tasks[0].problem.heads == 3
    assert json.loads(ran.stdout)[1]["mask"] == "causal"


def test_times_of_records_stand_beside_the_counters(jobs, tmp_path):
    path = tmp_path / "records.jsonl"
    config = get_kernel_configs("prog")[-1].short_form()
    append_records(path, [record("progression", config, 4096, 1540.0)])
    ran = run("prog", "--batch", "2", "--records", str(path), "--json")
    recorded = {row["config"]: row["recorded_us"] for row in json.loads(ran.stdout)}
    assert recorded[config] == 1540.0
    assert recorded[get_kernel_configs("prog")[0].short_form()] is None


def test_counters_are_written_down_as_records(jobs, tmp_path):
    path = tmp_path / "profile.jsonl"
    ran = run("prog", "-o", str(path), "--csv")
    assert ran.exit_code == 0, ran.output
    found = read_records(path)
    assert [r.what["name"] for r in found][1:] == [
        c.short_form() for c in get_kernel_configs("prog")
    ]
    assert found[1].what["suite"] == "profile"
    assert found[1].result["cycles"] == 1.5e6
    assert found[1].result["times_as_fast"] == 1.25


def test_a_machine_without_a_gpu_is_told_what_else_counts(monkeypatch):
    monkeypatch.setattr(verb, "has_cuda", lambda: False)
    ran = run("prog")
    assert isinstance(ran.exception, DeviceMissing)
    assert "flashsmith bench ladder --device emulator" in str(ran.exception)


def test_a_width_that_the_set_lacks_is_refused_before_anything_runs():
    assert isinstance(run("prog", "--d-heads", "64").exception, ArgumentError)


def test_a_path_that_cannot_be_written_is_found_before_anything_runs(jobs, tmp_path):
    ran = run("prog", "-o", str(tmp_path), "--csv")
    assert isinstance(ran.exception, StorageError)
    assert str(ran.exception) == f"{tmp_path}: Is a directory; check the path."
    assert jobs == []
