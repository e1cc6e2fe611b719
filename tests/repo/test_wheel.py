"""The wheel: built, installed into an empty environment and used there; importing it is light."""

import json
import os
import shutil
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
    return installed(ROOT, tmp_path_factory.mktemp("wheel"))


def installed(tree, folder):
    """Builds the wheel of a source tree and installs it in a new environment; its interpreter."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    build = ["wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(tree)]
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


def test_the_lines_of_the_readme_run_without_torch_and_cuda_packages(python, tmp_path):
    lines = (ROOT / "README.md").read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]
    assert "flash_attention(" in lines
    blocked = "import sys; sys.modules['torch'] = sys.modules['cuda'] = None\n"
    ran = run(python, "-c", blocked + lines, cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("(1, 200, 3, 64)\n")


BUILD_WITHOUT_GRADIENTS = """
from flashsmith.cli.main import main
from flashsmith.tuner.choose import shipped_kernels

shipped_kernels._ruled_jobs = lambda items: ()  # seconds each
main()
"""
SHIPPED_CALL = """
import numpy, pytest
import flashsmith
from standin_gpus import plug_in

with pytest.MonkeyPatch.context() as patched:
    gpu = plug_in(patched, "NVIDIA H200")
    q, k = (numpy.zeros((1, n, 3, 64), numpy.float16) for n in (130, 203))
    out, choice = flashsmith.flash_attention(q, k, k, causal=True, explain=True)
assert choice.source == "shipped measurement", choice
assert len({started.kernel for started in gpu.started}) == 1
assert "libnvrtc" not in open("/proc/self/maps").read(), "NVRTC was loaded"
print(flashsmith.__file__)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_wheel_with_its_kernels_needs_no_compiler_for_shipped_choices(tmp_path):
    """Made as `make wheel` makes it, with a table of one small kernel."""
    tree = tmp_path / "tree"
    for name in ("src", "benchmarks/results/h200"):
        unwanted = shutil.ignore_patterns("*.bundle", "__pycache__")
        shutil.copytree(ROOT / name, tree / name, ignore=unwanted)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copyfile(ROOT / name, tree / name)
    table = tree / "src/flashsmith/shipped/nvidia_h200.jsonl"
    line = json.loads(table.read_text().splitlines()[0])
    line["config"] = "(BF16, 64, 64, 32, 4): async+load_2_2_2_tiles"
    line["problem"] |= {"d_head": 64, "causal": True, "q_len": 128, "k_len": 128}
    table.write_text(json.dumps(line) + "\n")
    build = [sys.executable, "-c", BUILD_WITHOUT_GRADIENTS, "build", "--shipped", "--json"]
    made = subprocess.run(
        build,
        env={**os.environ, "PYTHONPATH": str(tree / "src")},
        check=True,
        capture_output=True,
        text=True,
    )
    assert json.loads(made.stdout)[0]["kernels"] == 16
    interpreter = installed(tree, tmp_path)
    changes = {"FLASHSMITH_NVRTC": "/nowhere", "FLASHSMITH_CACHE_DIR": str(tmp_path / "cache")}
    changes["FLASHSMITH_RESULTS"] = str(tmp_path / "none.sqlite")
    ran = subprocess.run(
        [str(interpreter), "-c", SHIPPED_CALL],
        env={**os.environ, **changes, "PYTHONPATH": str(ROOT / "tests/api")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    assert Path(ran.stdout.strip()).is_relative_to(tmp_path / "environment")
    assert not (tmp_path / "cache").exists()
