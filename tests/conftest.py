"""The devices tests run on, and the seeds they draw with."""

import gc
import os
import shutil
import tempfile
from pathlib import Path

# Small products on many threads take half as long again in all: workers are the parallel part.
# Set before NumPy is loaded; workers and commands that tests start inherit it.
for _library in ("OPENBLAS", "OMP", "MKL"):
    os.environ.setdefault(f"{_library}_NUM_THREADS", "1")
# Commands that tests start read bytecode, else each of them compiles the package anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# The user's own measurements would choose kernels here, and tests would write beside them.
_OWN_FOLDER = Path(tempfile.mkdtemp(prefix="flashsmith-tests-"))
os.environ["FLASHSMITH_RESULTS"] = str(_OWN_FOLDER / "results.sqlite")
# JAX takes three quarters of a GPU's memory when it is first used, and workers share one GPU.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import numpy as np
import pytest

from flashsmith.compile.compiler import compile_kernel, compile_ptx
from flashsmith.runtime import run
from flashsmith.runtime.devices import default_device, has_cuda, open_device

DEVICES = ["emulator"]
if has_cuda():
    DEVICES.append(pytest.param("cuda", marks=pytest.mark.gpu))

LONG_FIRST = ("tests/repo/", "tests/tuner/")


@pytest.fixture(params=DEVICES)
def device(request):
    """A device; the same test body holds on both."""
    return open_device("emulator") if request.param == "emulator" else default_device("cuda")


@pytest.fixture(autouse=True)
def _the_emulator_is_given_ptx_alone(request, monkeypatch):
    """Results need no machine code, which is two fifths of a compiler's time.

    A call of a user compiles it to pass over what would spill on a GPU, and a decode kernel is
    given its registers, which say how many ctas run at a time; of PTX alone no more of them do.
    Tests of both are marked `judged`; machine code that must not spill is held by tests that
    compile it: tests/cuda/test_spills.py, test_sass.py and test_decode.py beside it, and those of
    masks, biases and packed sequences in tests/kernels.
    """

    def of_device(device, launch, judged):
        return compile_ptx if device.runs_ptx else compile_kernel

    if "judged" not in request.keywords:
        monkeypatch.setattr(run, "_compiler_of", of_device)


def pytest_addoption(parser):
    parser.addoption(
        "--reseed",
        type=int,
        metavar="N",
        help="draw all numbers of tests with other seeds: what holds by luck of one fails here",
    )


def pytest_collection_modifyitems(config, items):
    if config.getoption("reseed") is not None:
        # What a GPU computed is of the numbers that were drawn for it.
        items[:] = [item for item in items if "test_confirmed_instructions" not in item.nodeid]
    # Much that is drawn, for a GPU alone, takes minutes in the emulator.
    items[:] = [item for item in items if not _is_of_a_gpu_in_the_emulator(item)]
    # Single tests of half a minute stand in these folders: where one is the last of all, the other
    # worker has nothing to do beside it.
    items.sort(key=lambda item: not item.nodeid.startswith(LONG_FIRST))


def _is_of_a_gpu_in_the_emulator(item):
    given = getattr(item, "callspec", None)
    on_emulator = given is not None and given.params.get("device") == "emulator"
    return on_emulator and item.get_closest_marker("gpu") is not None


def pytest_collection_finish():
    # Half a million objects of torch, JAX and the tests live to the end: looking at them again and
    # again took a twentieth of the CPU time.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


def pytest_unconfigure():
    shutil.rmtree(_OWN_FOLDER, ignore_errors=True)


def pytest_configure(config):
    seed = config.getoption("reseed")
    try:
        from hypothesis import settings
    except ImportError:  # a GPU machine's own Python may lack it
        pass
    else:
        settings.register_profile("tests", derandomize=seed is None)
        settings.load_profile("tests")
    if seed is not None:
        _move_seeds(seed)


def _move_seeds(by):
    """Gives NumPy and torch another seed wherever a test or a case of check/ names one."""
    numpy_rng = np.random.default_rng

    def default_rng(seed):
        return numpy_rng([by, *np.atleast_1d(seed).tolist()])

    np.random.default_rng = default_rng
    try:
        import torch
    except ImportError:
        return
    torch_seed, generator_seed = torch.manual_seed, torch.Generator.manual_seed
    torch.manual_seed = lambda seed: torch_seed(seed + 1000 * by)

    class Generator(torch.Generator):
        def manual_seed(self, seed):
            return generator_seed(self, seed + 1000 * by)

    torch.Generator = Generator
