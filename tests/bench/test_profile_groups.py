"""A long profile: groups of whole tasks, rows that outlive a failure, kernels compiled before."""

import csv
import json
import os
import select
import subprocess
import sys

import pytest

from flashsmith.base.dtypes import DType
from flashsmith.base.errors import CompileError, LaunchError, OutOfTime, Unsupported
from flashsmith.bench import ncu, profile_groups
from flashsmith.bench import profile as profile_module
from flashsmith.bench.profile import REFERENCE, Job, profile, tasks_of
from flashsmith.bench.profile_groups import Clock, Watcher, compiled_ahead, groups_of
from flashsmith.kernels import get_kernel_configs
from flashsmith.kernels.plans import needs_of
from flashsmith.measure.record import read_records
from flashsmith.problem.attention import AttentionProblem
from flashsmith.runtime.emulated import EmulatedDevice

LADDER = get_kernel_configs("prog")
HOPPER = get_kernel_configs("hopper-prog")
A_TASK = len(LADDER) + 1  # launches, the reference among them


def problem(length, dtype=DType.FP16):
    return AttentionProblem(2, 3, 3, length, length, 128, dtype)


def job_of(*lengths, configs=LADDER, runs=1, reference=True):
    return Job(tasks_of(configs, [problem(length) for length in lengths]), runs, reference)


def places(profiles):
    """Who and at which length, in the order of rows."""
    return [(one.who, one.problem.q_len) for one in profiles]


def rows_of(*lengths):
    forms = [REFERENCE, *(config.short_form() for config in LADDER)]
    return [(form, length) for length in lengths for form in forms]


def run_groups(job, at_most):
    told = []
    watcher = Watcher(
        lambda done: told.append(done), lambda group, rows: told.append((group.number, len(rows)))
    )
    return profile_groups.profile_groups(groups_of(job, at_most), watcher), told


def has_ended(pid):
    """Whether a process has ended, or does so at once."""
    try:
        handle = os.pidfd_open(int(pid))
    except ProcessLookupError:
        return True
    with os.fdopen(handle) as process:
        return bool(select.select([process], [], [], 10)[0])


def test_the_originals_line_is_five_groups_of_two_problems():
    tune = get_kernel_configs("tune")
    lengths = (1024, 2048, 4096, 8192, 16384)
    problems = [problem(length, dtype) for length in lengths for dtype in DType]
    groups = groups_of(Job(tasks_of(tune, problems), 1, True))
    assert [group.job.launches for group in groups] == [82] * 5
    assert [task for group in groups for task in group.job.tasks] == list(tasks_of(tune, problems))
    assert str(groups[4]) == "group 5 of 5 (length 16384)"


def test_a_task_that_is_too_long_for_a_group_is_cut_with_the_reference_in_each_part():
    groups = groups_of(job_of(512, runs=2), at_most=10)
    assert all(group.job.launches <= 10 for group in groups)
    assert all(group.job.reference and group.job.runs == 2 for group in groups)
    assert [c for group in groups for task in group.job.tasks for c in task.configs] == LADDER
    assert [group.job.launches for group in groups_of(job_of(512, configs=LADDER[:2]), 1)] == [2, 2]


def test_rows_of_all_groups_stand_in_the_order_of_the_job(fake_ncu):
    fake_ncu("works")
    found, told = run_groups(job_of(512, 1024, 2048), A_TASK)
    assert places(found.profiles) == rows_of(512, 1024, 2048)
    assert found.failures == []
    assert all(one.times_as_fast == pytest.approx(2, rel=0.01) for one in found.profiles[1:A_TASK])
    assert told == [A_TASK, (1, A_TASK), 2 * A_TASK, (2, A_TASK), 3 * A_TASK, (3, A_TASK)]


def test_a_group_that_crashes_costs_its_own_rows_only(fake_ncu):
    fake_ncu("works", "crash", "works")
    found, _ = run_groups(job_of(512, 1024, 2048), A_TASK)
    assert places(found.profiles) == rows_of(512, 2048)
    (failure,) = found.failures
    assert failure.startswith("group 2 of 3 (length 1024) failed: ncu returned exit code 1; it")
    assert isinstance(found.error, LaunchError)


def test_a_refusal_of_the_machine_ends_the_run_with_what_there_is(fake_ncu):
    fake_ncu("works", "permission", "works")
    found, _ = run_groups(job_of(512, 1024, 2048), A_TASK)
    assert places(found.profiles) == rows_of(512)
    assert "ERR_NVGPUCTRPERM" in found.failures[0]
    assert found.failures[0].endswith("; groups not run after it: 1.")
    assert isinstance(found.error, Unsupported)


def test_the_end_of_a_groups_time_ends_the_run_with_what_there_is(fake_ncu, monkeypatch):
    fake_ncu("works", "hang")
    seconds = iter([100.0, 0.1])
    run_ncu = profile_module.run_ncu
    monkeypatch.setattr(
        profile_module, "run_ncu", lambda *a, **b: run_ncu(*a, **b | {"seconds": next(seconds)})
    )
    found, _ = run_groups(job_of(512, 1024, 2048), A_TASK)
    assert places(found.profiles) == rows_of(512)
    assert isinstance(found.error, OutOfTime)
    assert found.failures == [
        "group 2 of 3 (length 1024) failed: ncu returned nothing after 0.1 s; profile fewer "
        "kernels or lengths at a time; groups not run after it: 1."
    ]


def test_a_group_of_which_nothing_fits_this_gpu_is_no_failure(fake_ncu):
    fake_ncu("nothing", "works")
    found, _ = run_groups(job_of(512, 1024), A_TASK)
    assert places(found.profiles) == rows_of(1024)
    assert (found.failures, found.left_out) == ([], ["does not fit", "does not fit"])


def test_a_group_that_ends_without_a_launch_or_a_reason_is_a_failure(fake_ncu):
    fake_ncu("silence", "works")
    found, _ = run_groups(job_of(512, 1024), A_TASK)
    assert places(found.profiles) == rows_of(1024)
    assert "group 1 of 2 (length 512) failed: ncu returned no launches" in found.failures[0]


def test_launches_are_told_while_a_group_runs_and_nothing_runs_on_after_it(
    fake_ncu, tmp_path, monkeypatch
):
    fake_ncu("hang")
    monkeypatch.setattr(ncu, "_LOOK_SECONDS", 0.02)

    def launched(launches):
        if launches:
            raise KeyboardInterrupt(f"{launches} launches")

    with pytest.raises(KeyboardInterrupt, match="2 launches"):
        profile(job_of(512), launched=launched)
    pids = (tmp_path / "bin" / "pids").read_text().split()
    assert all(has_ended(pid) for pid in pids)


DRIVER = """
import sys
from flashsmith.bench.profile_groups import groups_of
from flashsmith.cli import main
from flashsmith.cli.verbs import profile as verb
from flashsmith.runtime.emulated import EmulatedDevice

verb.has_cuda = lambda: True
verb.default_device = lambda name: EmulatedDevice("sm_90a")
verb.compiled_ahead = lambda job, device, progress: (job, ["x: no room"])
verb.groups_of = lambda job: groups_of(job, 8)
main.main()
"""


def run_verb(*arguments):
    command = [sys.executable, "-c", DRIVER, "profile", "prog", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def test_a_stopped_run_shows_and_keeps_the_rows_that_there_are(fake_ncu, tmp_path):
    fake_ncu("works", "stop")
    path = tmp_path / "profile.jsonl"
    ran = run_verb("--seq-lens", "512,1024,2048", "--csv", "-o", str(path))
    assert ran.returncode == 1, ran.stderr
    first = [who for who, _ in rows_of(512)]
    assert [row["config"] for row in csv.DictReader(ran.stdout.splitlines())] == first
    assert [record.what["name"] for record in read_records(path)] == first
    assert (
        "group 2 of 3 (length 1024) failed: stopped by SIGTERM; groups not run after it: 1.\n"
        in ran.stderr
    )
    pids = (tmp_path / "bin" / "pids").read_text().split()
    assert all(has_ended(pid) for pid in pids)


def test_every_group_is_a_line_of_progress_beside_the_result(fake_ncu):
    fake_ncu("works", "crash", "works")
    ran = run_verb("--seq-lens", "512,1024,2048", "--json")
    assert ran.returncode == 1, ran.stderr
    assert len(json.loads(ran.stdout)) == 2 * A_TASK
    said = ran.stderr.splitlines()
    assert said[0] == "24 launches in 3 groups, each replayed for its counters"
    assert said[1].startswith("group 1 of 3 (length 512): 8 of 24 launches in ")
    assert said[2].startswith("group 3 of 3 (length 2048): 24 of 24 launches in ")
    assert said[2].endswith("about 0 s left")
    assert "left out: x: no room" in said


@pytest.mark.parametrize(
    ("mode", "says"),
    [("permission", "ERR_NVGPUCTRPERM"), ("nothing", "none of the configurations ran on this GPU")],
)
def test_a_run_without_a_row_says_why_and_is_a_usage_error(fake_ncu, mode, says):
    fake_ncu(mode)
    ran = run_verb("--seq-lens", "512,1024", "--csv")
    assert (ran.returncode, ran.stdout) == (2, "")
    assert says in ran.stderr


def test_the_time_left_is_what_the_launches_so_far_mean():
    times = iter([100.0, 130.0])
    clock = Clock(410, lambda: next(times))
    assert clock.state(82) == "82 of 410 launches in 30 s, about 120 s left"


def test_what_does_not_compile_is_left_out_before_a_profiler_starts(monkeypatch):
    compiled = []

    def compile_many(jobs, *, progress):
        compiled.extend(jobs)
        progress(len(jobs), len(jobs))
        bad = CompileError(LADDER[1].short_form(), "error: no such thing", None)
        return [bad if job.config == LADDER[1] else made for job in jobs]

    from flashsmith.compile.compiler import compile_kernel

    monkeypatch.setattr(profile_groups, "compile_many", compile_many)
    device = EmulatedDevice("sm_86")
    asked = job_of(512, 1024, configs=[*LADDER[:3], HOPPER[0].replace(dtype=DType.FP16)])
    needs = needs_of(LADDER[0], problem(512))
    made = compile_kernel(LADDER[0], needs, "sm_86")
    told = []
    job, left_out = compiled_ahead(asked, device, lambda *state: told.append(state))
    assert [task.configs for task in job.tasks] == [(LADDER[0], LADDER[2])] * 2
    assert "sm90_forward does not exist for sm_86" in left_out[0]
    assert "does not compile: error: no such thing" in left_out[1]
    assert [one.config for one in compiled] == LADDER[:3]  # two lengths, the same kernels
    assert told == [(3, 3)]
