"""`bench` and `progression`: what they write down, and what they say without a GPU."""

import csv
import io

import pytest
from typer.testing import CliRunner

from flashsmith.base.errors import ArgumentError, DeviceMissing
from flashsmith.cli.main import app
from flashsmith.cli.verbs import bench, progression
from flashsmith.kernels import get_kernel_configs
from flashsmith.measure.facts import Facts
from flashsmith.measure.interleaved import Comparison, Timed
from flashsmith.measure.record import read_records
from flashsmith.measure.statistics import ratio_by_round, summarize
from flashsmith.runtime.emulated import EmulatedDevice

FACTS = Facts(168, 0, 49152, 3, "registers", 2461.0, 0.21, 0.0, 16.0, 900.0, 0.0)


@pytest.fixture
def timed(monkeypatch):
    """A stand-in for a GPU: step n takes 100 / n microseconds."""

    def time_all(configs, problem, rounds, regime):
        samples = [(100.0 / n,) * rounds for n, _ in enumerate(configs, start=1)]
        found = tuple(
            Timed(c.short_form(), s, summarize(s), ratio_by_round(samples[0], s))
            for c, s in zip(configs, samples, strict=True)
        )
        return Comparison(regime, found, summarize([1.0]), ())

    monkeypatch.setattr(progression, "_time", time_all)
    monkeypatch.setattr(
        progression, "counted", lambda configs, arch, **more: dict.fromkeys(configs, FACTS)
    )
    monkeypatch.setattr(progression, "default_device", lambda name: EmulatedDevice("sm_90a"))
    monkeypatch.setattr(progression, "default_device_name", lambda: "cuda")


def run(*arguments):
    return CliRunner().invoke(app, list(arguments), env={"KERNELS": "", "COLUMNS": "80"})


@pytest.mark.parametrize(("ladder", "key"), [("prog", "prog"), ("hopper", "hopper-prog")])
def test_a_ladder_is_written_down_in_its_order(timed, tmp_path, ladder, key):
    path = tmp_path / "records.jsonl"
    ran = run("progression", ladder, "--seq-lens", "1024,4096", "-o", str(path), "--csv")
    assert ran.exit_code == 0, ran.output
    names = [config.short_form() for config in get_kernel_configs(key)]
    found = read_records(path)
    assert [r.what["name"] for r in found] == 2 * names
    assert {r.what["suite"] for r in found} == {"progression"}
    rows = list(csv.DictReader(io.StringIO(ran.stdout)))
    assert [row["length"] for row in rows[:: len(names)]] == ["1024", "4096"]
    assert rows[2]["times_as_fast"] == "1.5"
    assert rows[2]["since_start"] == "3.0"
    assert rows[2]["registers"] == "168"


@pytest.mark.parametrize(("given", "rounds"), [((), 21), (("--rounds", "33"), 33)])
def test_a_ladder_is_timed_in_as_many_rounds_as_asked(timed, monkeypatch, given, rounds):
    asked, time_all = [], progression._time
    monkeypatch.setattr(progression, "_time", lambda *a: asked.append(a[2]) or time_all(*a))
    ran = run("progression", *given)
    assert ran.exit_code == 0, ran.output
    assert asked == [rounds]


def test_a_knob_is_written_down_under_its_name(timed, tmp_path):
    path = tmp_path / "records.jsonl"
    ran = run("progression", "--knob", "B_c", "--sustained", "-o", str(path), "--csv")
    assert ran.exit_code == 0, ran.output
    found = read_records(path)
    assert {r.what["suite"] for r in found} == {"knob B_c"}
    assert {r.result["regime"] for r in found} == {"sustained"}


def test_without_a_gpu_the_ladder_shows_reasons_and_no_times(timed, monkeypatch):
    ran = run("progression", "--device", "emulator", "--csv")
    assert ran.exit_code == 0, ran.output
    assert "No GPU is used" in ran.stderr
    rows = list(csv.DictReader(io.StringIO(ran.stdout)))
    assert "median_us" not in rows[0]
    assert rows[0]["conflicts_a_phase"] == "0.0"


@pytest.mark.parametrize("option", ["--seq-lens", "--batch", "--heads", "--kv-heads"])
def test_without_a_gpu_a_size_that_only_times_depend_on_is_refused(timed, option):
    ran = run("progression", "--device", "emulator", option, "8")
    assert isinstance(ran.exception, ArgumentError)
    assert f"{option} is given without a GPU" in str(ran.exception)


def test_bench_without_a_gpu_says_where_records_are_shown(monkeypatch):
    monkeypatch.setattr(bench, "has_cuda", lambda: False)
    ran = run("bench")
    assert isinstance(ran.exception, DeviceMissing)
    assert "flashsmith report" in str(ran.exception)


def test_bench_runs_the_lengths_that_are_asked_for(monkeypatch):
    asked = []
    monkeypatch.setattr(bench, "_run", lambda suite, *_, **__: asked.append(suite) or [])
    for arguments in ([], ["--seq-lens", "4096"]):
        assert run("bench", *arguments, "--json").exit_code == 0
    assert [len(suite.shapes) for suite in asked] == [8, 4]


def test_a_suite_is_listed_without_a_gpu(monkeypatch):
    monkeypatch.setattr(bench, "has_cuda", lambda: False)
    ran = run("bench", "--suite", "serve", "--list", "--csv")
    assert ran.exit_code == 0, ran.output
    rows = list(csv.DictReader(io.StringIO(ran.stdout)))
    assert len(rows) == 40
    wanted = next(row for row in rows if row["shape"] == "b64 k32768 q1 32:8 page 16")
    assert (wanted["batch"], wanted["k_len"], wanted["kv_mib"]) == ("64", "32768", "8192.0")
    assert wanted["facts"] == "k_lengths page=16 pages=131072"
    shown = run("bench", "--suite", "models", "--list", "--all").stdout
    assert "gpt-oss 20B, sinks and window 128, 8k" in shown
    assert max(map(len, shown.splitlines())) <= 80
    assert "mask causal" in run("bench", "--suite", "llm", "--list").stdout
    ran = run("bench", "--suite", "models", "--list", "--numbers")
    assert "--list and --numbers are both given" in str(ran.exception)


def test_an_unknown_suite_is_refused_before_anything_runs():
    ran = run("bench", "--suite", "papper")
    assert isinstance(ran.exception, ArgumentError)
    assert "did you mean paper" in str(ran.exception)


def test_a_set_that_no_shape_of_the_suite_fits_is_refused_before_anything_runs():
    ran = run("bench", "prog", "--dtype", "bf16")
    assert isinstance(ran.exception, ArgumentError)
    assert "no shape of quick fits prog, whose kernels are FP16 d_head 128" in str(ran.exception)
    ran = CliRunner().invoke(app, ["bench"], env={"KERNELS": "prog"})
    assert "no shape of quick fits prog" in str(ran.exception)
