"""The wheel: built, installed into an empty environment and used there; importing it is light."""

import json
import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEAVY = ("numpy", "torch", "cuda", "rich", "typer", "nvidia", "ray", "optuna", "plotly")


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """The interpreter of an environment that holds the built wheel and its dependencies."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    build = ["wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(ROOT)]
    subprocess.run([*pip, *build], check=True, cwd=folder)
    (wheel,) = folder.glob("flashsmith-*.whl")
    environment = folder / "environment"
    venv.create(environment, with_pip=False)
    interpreter = environment / ("Scripts" if os.name == "nt" else "bin") / "python"
    subprocess.run(
        [*pip, "--python", str(interpreter), "install", "--no-deps", str(wheel)], check=True
    )
    # The dependencies are those of this environment: a test does not reach for the network.
    (site,) = environment.glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return interpreter


def run(python, *arguments, cwd=None):
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "KERNELS")}
    return subprocess.run(
        [str(python), *arguments], env=environment, cwd=cwd, capture_output=True, text=True
    )


def test_the_installed_package_is_the_wheels_and_holds_its_headers(python, tmp_path):
    code = (
        "import flashsmith, pathlib; root = pathlib.Path(flashsmith.__file__).parent; "
        "print(root); print(len(list(root.rglob('*.cuh')))); print(flashsmith.__version__)"
    )
    ran = run(python, "-c", code, cwd=tmp_path)
    place, headers, version = ran.stdout.split()
    assert Path(place).is_relative_to(python.parents[1])
    assert int(headers) == len(list((ROOT / "src").rglob("*.cuh"))) > 0
    assert run(python, "-m", "flashsmith", "--version").stdout == f"flashsmith {version}\n"


def test_the_command_of_the_installed_package_works(python, tmp_path):
    command = python.parent / "flashsmith"
    ran = subprocess.run(
        [str(command), "configs", "64,64", "--json"], cwd=tmp_path, capture_output=True, text=True
    )
    assert len(json.loads(ran.stdout)) == 32


def test_without_compiler_and_cuda_packages_the_rest_works(python, tmp_path):
    blocked = (
        "import sys; sys.modules['cuda'] = None; sys.modules['nvidia'] = None; "
        "sys.modules['torch'] = None; sys.argv = ['flashsmith', 'configs', 'prog', '--csv']; "
        "from flashsmith.cli.main import main; main()"
    )
    ran = run(python, "-c", blocked, cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert len(ran.stdout.splitlines()) == 1 + 7


def test_importing_flashsmith_imports_no_framework_and_no_cuda_package(python, tmp_path):
    code = (
        "import sys, time; start = time.perf_counter(); import flashsmith; "
        "print(time.perf_counter() - start); print(' '.join(sys.modules))"
    )
    ran = run(python, "-c", code, cwd=tmp_path)
    seconds, modules = ran.stdout.splitlines()
    print(f"import flashsmith: {float(seconds):.3f} s")  # noqa: T201
    tops = {name.partition(".")[0] for name in modules.split()}
    assert not tops & set(HEAVY)
