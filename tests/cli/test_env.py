"""`flashsmith env`: what is there, what is missing, and what to do about it."""

import json
import sys

import pytest
from typer.testing import CliRunner

from flashsmith import __version__
from flashsmith.base.errors import CompilerMissing
from flashsmith.cli.main import app
from flashsmith.cli.verbs import env


@pytest.fixture
def environment(monkeypatch, tmp_path):
    monkeypatch.setenv("FLASHSMITH_CACHE_DIR", str(tmp_path / "cache"))

    def run():
        ran = CliRunner().invoke(app, ["env", "--json"])
        assert ran.exit_code == 0, ran.output
        return {row["what"]: row for row in json.loads(ran.stdout)}

    return run


def test_what_is_there_is_named_with_its_version(environment):
    rows = environment()
    assert rows["flashsmith"]["found"] == __version__
    assert rows["Python"]["found"].startswith(".".join(map(str, sys.version_info[:3])))
    assert rows["numpy"]["found"]
    assert rows["numpy"]["to_get_it"] is None


def test_the_cache_is_named_with_its_size_and_limit(environment, tmp_path):
    found = environment()["kernel cache"]["found"]
    assert str(tmp_path / "cache") in found
    assert "0 entries, 0.0 of 2,147 MB" in found


def test_what_is_missing_says_for_what_and_how_to_get_it(environment, monkeypatch):
    monkeypatch.setattr(env.shutil, "which", lambda name: None)
    monkeypatch.setattr(env, "find_driver", lambda: "libcuda.so.1 cannot be loaded")

    def no_compiler():
        raise CompilerMissing("none")

    monkeypatch.setattr(env, "find_nvrtc", no_compiler)
    monkeypatch.setattr(env, "find_nvdisasm", no_compiler)
    monkeypatch.setattr(env, "PACKAGES", (("no-such-package", "a test", "pip install it"),))
    rows = environment()
    for what, needed_for, to_get_it in [
        ("NVRTC", "compiling kernels", "pip install nvidia-cuda-nvrtc"),
        ("GPU", "running on a GPU", "libcuda.so.1 cannot be loaded"),
        ("ncu", "profiling", "Nsight Compute"),
        ("nvdisasm", "SASS in", "pip install nvidia-cuda-nvdisasm"),
        ("no-such-package", "a test", "pip install it"),
    ]:
        assert rows[what]["found"] is None
        assert needed_for in rows[what]["needed_for"]
        assert to_get_it in rows[what]["to_get_it"]


def test_only_a_checkout_is_told_to_make_a_wheel(environment, monkeypatch, tmp_path):
    monkeypatch.setattr(env.measured, "SHIPPED_FOLDER", tmp_path)
    monkeypatch.setattr(env, "IN_CHECKOUT", True)
    assert environment()["shipped kernels"]["to_get_it"] == "make wheel"
    monkeypatch.setattr(env, "IN_CHECKOUT", False)
    row = environment()["shipped kernels"]
    assert (row["found"], row["to_get_it"]) == (
        "none: the first call of a kernel compiles it",
        None,
    )


def test_a_table_has_what_is_there_apart_from_what_is_missing(environment):
    text = CliRunner().invoke(app, ["env"], env={"COLUMNS": "80"}).stdout
    found, _, missing = text.partition("\nmissing\n")
    assert "numpy" in found
    assert "to_get_it" in missing or not missing
    assert max(map(len, text.splitlines())) <= 80


def test_an_nvrtc_too_new_for_the_driver_is_said(environment, monkeypatch):
    monkeypatch.setattr(env, "driver_misfit", lambda library: "the driver loads cubins of CUDA 12")
    pytest.importorskip("nvidia")
    assert "the driver loads cubins of CUDA 12" in environment()["NVRTC"]["found"]


def test_a_gpu_is_described_by_name_architecture_and_size(environment, monkeypatch):
    class OneGpu:
        version = (13, 0)

        def integer(self, name, *arguments):
            values = {env.MAJOR: 9, env.MINOR: 0, env.SM_COUNT: 132}
            return values[arguments[0]] if arguments else 1

        def text(self, name, *arguments):
            return "NVIDIA H200"

    monkeypatch.setattr(env, "find_driver", OneGpu)
    rows = environment()
    assert rows["driver"]["found"] == "CUDA 13.0"
    assert rows["GPU 0"]["found"] == "NVIDIA H200, sm_90a (9.0), 132 SMs"
