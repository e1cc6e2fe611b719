"""`flashsmith build registry` and `flashsmith build`: files, sizes and refusals."""

import errno
import json
import shutil

import pytest
from typer.testing import CliRunner

from flashsmith.base.errors import ArgumentError
from flashsmith.cli.main import app
from flashsmith.compile.ahead_of_time.bundle import read_bundle
from flashsmith.problem.attention import AttentionProblem
from flashsmith.tuner.choose import shipped_kernels
from flashsmith.tuner.store.exchange import write_lines
from flashsmith.tuner.store.measurement import Measurement, MeasurementKey
from flashsmith.tuner.store.outcome import Timed

SMALL = "(BF16, 64, 64, 32, 4): async+eager+swizzled+load_2_2_2_tiles+opt_softmax"
LARGE = "(FP16, 256, 128, 64, 8): async+swizzled+load_2_2_2_tiles"


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FLASHSMITH_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("KERNELS", raising=False)


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_generate_writes_the_registry_of_what_is_built_ahead_of_time(tmp_path):
    done = run("generate", "-o", tmp_path / "out")
    assert done.exit_code == 0
    assert "flash_kernels.cuh: 85 configurations" in done.stdout
    assert len(list((tmp_path / "out" / "kernels").iterdir())) == 85


def test_generate_takes_a_key(tmp_path):
    assert "7 configurations" in run("generate", "prog", "-o", tmp_path / "out").stdout


def test_build_makes_a_bundle_and_says_what_is_left_out(tmp_path):
    (tmp_path / "two").write_text(f"{SMALL}\n{LARGE}\n")
    key = f"@{tmp_path / 'two'}"
    place = tmp_path / "k.bundle"
    done = run("build", key, "--arch", "sm_86", "--bundle", place, "--json")
    (row,) = json.loads(done.stdout)
    assert (row["configs"], row["kernels"], row["made"]) == (1, 4, str(place))
    assert row["megabytes"] > 0.01
    assert f"left out for sm_86: {LARGE}" in done.stderr
    assert [config.short_form() for config in read_bundle(place).configs()] == [SMALL]


def test_build_makes_the_kernels_of_the_shipped_measurements(tmp_path, monkeypatch):
    monkeypatch.setattr("flashsmith.tuner.choose.measured.SHIPPED_FOLDER", tmp_path)
    monkeypatch.setattr(shipped_kernels, "_ruled_jobs", lambda items: ())  # seconds each
    problem = AttentionProblem(1, 3, 1, 4096, 4096, 64, causal=True)
    key = MeasurementKey("NVIDIA Test", "sm_80", "", "", "", SMALL, problem, "final")
    write_lines([Measurement(key, Timed(9.0, 9.0, 9.0, 15, "f"), gate=True)], tmp_path / "t.jsonl")
    (row,) = json.loads(run("build", "--shipped", "--json").stdout)
    place = tmp_path / "sm_80.bundle"
    megabytes = round(place.stat().st_size / 1e6, 2)
    assert row == {"made": str(place), "kernels": 16, "megabytes": megabytes}
    assert read_bundle(tmp_path / "sm_80.bundle").arches() == ["sm_80"]


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not on PATH")
def test_build_makes_a_library(tmp_path):
    done = run("build", SMALL, "--arch", "sm_80", "--library", tmp_path / "lib", "--json")
    (row,) = json.loads(done.stdout)
    assert row["made"] == str(tmp_path / "lib" / "libflashsmith.so")
    assert row["seconds"] > 0
    assert (tmp_path / "lib" / "flashsmith.h").is_file()


def test_build_without_a_thing_to_make_is_refused():
    done = run("build", SMALL)
    assert isinstance(done.exception, ArgumentError)
    assert "none of --library, --bundle and --shipped is given" in str(done.exception)


def test_generate_on_a_full_disk_names_the_folder_that_was_asked_for(tmp_path, monkeypatch):
    def full(source, target):
        raise OSError(errno.ENOSPC, "No space left on device", str(source))

    monkeypatch.setattr(shutil, "copyfile", full)
    ran = CliRunner().invoke(app, ["generate", "smoke", "-o", str(tmp_path / "out")])
    assert str(ran.exception) == (f"{tmp_path / 'out'}: the disk is full; make room and try again.")


LLAMA = {"num_attention_heads": 8, "num_key_value_heads": 2, "hidden_size": 512}


def test_a_models_kernels_are_compiled_ahead_and_counted(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    options = ("--seq-lens", "256", "--arch", "sm_80", "--json")
    (first,) = json.loads(run("build", "warmup", "--model", tmp_path, *options).stdout)
    assert first["problems"] == 4
    assert first["compiled"] == first["kernels"] > 1
    shape = ("--heads", "8", "--kv-heads", "2", "--d-head", "64")
    (again,) = json.loads(run("build", "warmup", *shape, *options).stdout)
    assert (again["kernels"], again["compiled"]) == (first["kernels"], 0)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "nothing to warm up; give problems, a model or a log"),
        (["--heads", "8"], "--heads and --d-head are given together"),
        (["--model", "x", "--heads", "8", "--d-head", "64"], "--model and --heads are both given"),
        (["--model", "/nowhere/config.json"], "/nowhere/config.json: "),
    ],
)
def test_a_warmup_of_nothing_is_refused(arguments, said):
    assert said in str(run("build", "warmup", *arguments).exception)
