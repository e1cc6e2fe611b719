"""The Makefile: what is installed is installed once, and again when pyproject.toml changed."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


@pytest.fixture
def make(tmp_path):
    """Says what make would do in a clone whose environment is installed."""
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "src").mkdir()
    (tmp_path / "tests").mkdir()
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "python").touch()
    for stamp in (".run", ".test"):
        path = tmp_path / ".venv" / stamp
        path.touch()
        os.utime(path, (2e9, 2e9))

    def dry_run(target):
        ran = subprocess.run(
            ["make", "-n", target], cwd=tmp_path, capture_output=True, text=True, check=True
        )
        return ran.stdout

    dry_run.folder = tmp_path
    return dry_run


@pytest.mark.parametrize("target", ["run", "test"])
def test_nothing_is_installed_twice(make, target):
    assert "pip install" not in make(target)


@pytest.mark.parametrize("target", ["run", "test"])
def test_a_changed_pyproject_installs_again(make, target):
    os.utime(make.folder / "pyproject.toml", (3e9, 3e9))
    assert "pip install" in make(target)


@pytest.mark.parametrize("target", ["run", "test"])
def test_a_fresh_clone_makes_its_environment_first(make, target):
    shutil.rmtree(make.folder / ".venv")
    text = make(target)
    assert text.index("-m venv .venv") < text.index("pip install")


def test_the_tests_are_every_check_in_order(make):
    text = make("test")
    parts = [
        "ruff check",
        "ruff format --check",
        "mypy",
        "clang-format",
        "codespell",
        "pytest -n 2",
    ]
    places = [text.index(part) for part in parts]
    assert places == sorted(places)


def test_gpu_tests_use_the_given_python_and_install_nothing(make):
    text = make("test-gpu")
    assert "PYTHONPATH=src python3 -m pytest tests -m gpu" in text
    assert "pip" not in text
    assert ".venv" not in text


def test_continuous_integration_runs_the_tests_and_nothing_else():
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    commands = [
        line for line in script.read_text().splitlines() if line and not line.startswith("#")
    ]
    assert commands[-1] == "exec make test"
