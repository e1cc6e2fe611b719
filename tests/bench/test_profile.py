"""Nsight Compute's table is read, kernels become configurations, refusals say why."""

import json

import pytest
from ncu_samples import COLUMNS, COMBINE, FA2, UNITS, log_of

from flashsmith.base.dtypes import DType
from flashsmith.base.errors import ArgumentError, DamagedFile, LaunchError, Unsupported
from flashsmith.bench import ncu
from flashsmith.bench.ncu_csv import parse_ncu_csv
from flashsmith.bench.profile import REFERENCE, Job, Launched, profile, profiles_of, tasks_of
from flashsmith.bench.profiled import launch_all
from flashsmith.kernels import get_kernel_configs
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.needs import Needs
from flashsmith.runtime.emulated import EmulatedDevice

LADDER = get_kernel_configs("prog")
HOPPER = get_kernel_configs("hopper-prog")
PROBLEM = AttentionProblem(2, 3, 3, 200, 200, 128, DType.FP16)
TENSOR = "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active"


def name_of(config):
    return config.kernel_name(Needs(("causal",)))


def test_a_table_becomes_numbers_in_one_unit():
    kernels = parse_ncu_csv(log_of([(FA2, 1_234_567), (name_of(LADDER[0]), 2_000)]))
    assert [kernel.name for kernel in kernels] == [FA2, name_of(LADDER[0])]
    first = kernels[0].metrics
    assert first["gpu__time_duration.sum"] == pytest.approx(1234.567)
    assert first["launch__registers_per_thread"] == 168
    assert first["lts__t_sector_hit_rate.pct"] == 93.25
    assert first[TENSOR] is None
    assert set(first) == set(COLUMNS[11:])


@pytest.mark.parametrize(("unit", "us"), [("usecond", 5.0), ("msecond", 5000.0), ("ns", 0.005)])
def test_units_of_every_version_are_understood(unit, us):
    units = (*UNITS[:11], unit, *UNITS[12:])
    kernel = parse_ncu_csv(log_of([(FA2, 5)], units=units))[0]
    assert kernel.metrics["gpu__time_duration.sum"] == pytest.approx(us)


def test_a_log_without_a_table_holds_no_kernels():
    assert parse_ncu_csv("==PROF== Connected\n==WARNING== No kernels were profiled.\n") == []


def test_a_table_that_is_not_of_the_raw_page_is_refused():
    text = log_of([(FA2, 5)])
    without_units = "\n".join(part for part in text.splitlines() if "register/thread" not in part)
    with pytest.raises(DamagedFile, match="no row of units"):
        parse_ncu_csv(without_units)
    with pytest.raises(DamagedFile, match="cut off"):
        parse_ncu_csv(text.replace(',"n/a"', ""))


def test_kernels_become_configurations_of_every_family_in_the_order_of_launches():
    configs = (LADDER[-1], HOPPER[-1])
    job = Job(tasks_of(LADDER, [PROBLEM]), 2, True)
    launches, kernels = [], []
    for run in range(2):
        launches += [Launched(0, REFERENCE), *(Launched(0, c.short_form()) for c in configs)]
        kernels += [(FA2, 3000), (COMBINE, 1000), *((name_of(c), 2000 + run) for c in configs)]
    rows = profiles_of(job, launches, parse_ncu_csv(log_of(kernels)))
    assert [row.who for row in rows] == [REFERENCE, *(c.short_form() for c in configs)]
    assert rows[0].metrics["duration_us"] == pytest.approx(4.0)
    assert rows[0].times_as_fast is None
    assert rows[1].metrics["duration_us"] == pytest.approx(2.0005)
    assert rows[1].times_as_fast == pytest.approx(4 / 2.0005)
    flops = 4 * 2 * 3 * 200 * 200 * 128
    assert rows[1].tflops == pytest.approx(flops / 2.0005e-6 / 1e12)


def test_a_kernel_that_was_not_launched_there_is_never_taken_for_another():
    job = Job(tasks_of(LADDER, [PROBLEM]), 1, False)
    launches = [Launched(0, c.short_form()) for c in LADDER[:2]]
    swapped = parse_ncu_csv(log_of([(name_of(c), 1) for c in LADDER[1::-1]]))
    with pytest.raises(DamagedFile, match="was launched, and Nsight Compute shows flashsmith_"):
        profiles_of(job, launches, swapped)
    with pytest.raises(DamagedFile, match="shows nothing more"):
        profiles_of(job, launches, swapped[1:])


def test_a_job_comes_back_from_its_text():
    job = Job(tasks_of([*LADDER, *HOPPER], [PROBLEM]), 3, True)
    assert Job.from_json(job.to_json()) == job
    assert job.launches == 3 * (len(LADDER) + 1)


def test_a_width_that_no_configuration_has_is_said():
    with pytest.raises(ArgumentError, match="they have 128; pass --d-heads"):
        tasks_of(LADDER, [AttentionProblem(1, 1, 1, 64, 64, 64, DType.FP16)])


def test_a_run_under_the_profiler_gives_rows_and_what_was_left_out(fake_ncu):
    arguments = fake_ncu("works")
    job = Job(tasks_of(LADDER, [PROBLEM]), 2, True)
    rows, left_out = profile(job)
    assert [row.who for row in rows] == [REFERENCE, *(c.short_form() for c in LADDER)]
    assert rows[1].times_as_fast == pytest.approx(2.0)
    assert left_out == ["does not fit"]
    given = json.loads(arguments.read_text())
    assert "--clock-control none --target-processes all" in " ".join(given)
    assert set(given[given.index("--metrics") + 1].split(",")) == set(ncu.METRICS.values())


def test_counters_that_a_gpu_does_not_have_are_left_away(fake_ncu):
    arguments = fake_ncu("old")
    rows, _ = profile(Job(tasks_of(LADDER[:1], [PROBLEM]), 1, False))
    assert rows[0].metrics["registers"] == 168
    given = json.loads(arguments.read_text())
    assert given[given.index("--metrics") + 1].split(",") == list(ncu.ESSENTIAL)


@pytest.mark.parametrize(
    ("mode", "error", "says"),
    [
        ("permission", Unsupported, r"ERR_NVGPUCTRPERM.*SYS_ADMIN.*RestrictProfiling"),
        ("crash", LaunchError, "exit code 1; it said: flashsmith.base.errors.LaunchError: cuLau"),
    ],
)
def test_a_refusal_says_what_to_do(fake_ncu, mode, error, says):
    fake_ncu(mode)
    with pytest.raises(error, match=says):
        profile(Job(tasks_of(LADDER[:1], [PROBLEM]), 1, False))


def test_a_missing_profiler_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(ncu, "_USUAL_PATHS", (str(tmp_path / "ncu"), str(tmp_path)))
    with pytest.raises(Unsupported, match=r"no `ncu` is on the PATH.*install the package"):
        ncu.find_ncu()


def test_the_watched_program_launches_every_configuration_in_every_round():
    problem = AttentionProblem(1, 3, 3, 130, 200, 128, DType.FP16)
    configs = [LADDER[1], LADDER[2], HOPPER[0].replace(dtype=DType.FP16)]
    job = Job(tasks_of(configs, [problem]), 2, False)
    seen = []
    launch_all(EmulatedDevice("sm_86"), job, seen.append)
    forms = [config.short_form() for config in configs]
    refused = [launched for launched in seen if launched.left_out]
    assert [launched.who for launched in refused] == forms[2:]
    assert "sm90_forward does not exist for sm_86" in refused[0].left_out
    assert [launched.who for launched in seen if not launched.left_out] == 2 * forms[:2]
