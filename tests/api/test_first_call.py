"""The first call of a process: it imports what it needs, and nothing of what others need."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from flashsmith.kernels.catalogue import CATALOGUE, PARTS

# Parts of module names: other operations, other kernels, other frameworks, and what people ask for.
NOT_NEEDED = (
    *("backward", "sm80_", "_decode", "tile_list.plan", "block_list.plan", "cpu_kernel"),
    *("jax_op", "emulator", "check.", "report", "bench", "cli", "tuner.run", "version_0_1"),
    *("measure.", "shape_log", "occupancy", "gpus", "jagged"),
)
COMPILES = ("upkeep", "nvrtc.program", "nvrtc.apart")
LOADED = "print(*(name for name in sys.modules if name.startswith('flashsmith.')))"
IMPORT = f"import sys, torch, flashsmith\nflashsmith.flash_attention\n{LOADED}"
CALL = f"""
import sys, numpy, pytest
import flashsmith
from standin_gpus import plug_in

with pytest.MonkeyPatch.context() as patched:
    plug_in(patched, "NVIDIA H200")
    q = numpy.zeros((2, 1001, 7, 128), numpy.float16)
    flashsmith.flash_attention(q, q, q, causal=True)
{LOADED}
"""


@pytest.mark.parametrize(
    ("code", "needed", "not_needed"),
    [
        (IMPORT, "flashsmith.torch_op.operator", (*NOT_NEEDED, *COMPILES, "_forward")),
        (CALL, "flashsmith.kernels.sm90_forward.plan", NOT_NEEDED),
    ],
    ids=["import beside torch", "first call on an H200"],
)
def test_what_a_first_call_does_not_need_is_not_imported(code, needed, not_needed):
    paths = os.pathsep.join([*filter(None, sys.path), str(Path(__file__).parent)])
    environment = {**os.environ, "PYTHONPATH": paths}
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment
    )
    assert ran.returncode == 0, ran.stderr
    loaded = ran.stdout.split()
    assert needed in loaded
    assert not [name for name in loaded for part in not_needed if part in name]


@pytest.mark.parametrize("family", [*CATALOGUE, *PARTS], ids=lambda family: family.NAME)
def test_the_catalogue_says_of_a_kernel_what_its_class_says(family):
    """It is asked in their place while they are not imported."""
    shelf = CATALOGUE if family in [*CATALOGUE] else PARTS
    assert family in shelf.of(family.OPERATION)
    assert shelf.written(family.PREFIX or "-") == [family]
