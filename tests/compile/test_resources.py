"""Registers, spills, stack and warnings: read from the logs of each NVRTC as it writes them."""

import pytest

from flashsmith.base.errors import DamagedFile
from flashsmith.compile.machine.resources import parse_resources

LOG_13_0 = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'k' for 'sm_90a'
ptxas info    : Function properties for k
    48 bytes stack frame, 40 bytes spill stores, 36 bytes spill loads
ptxas info    : Used 255 registers, used 3 barriers, 48 bytes cumulative stack size, 1024 bytes smem
ptxas info    : Compile time = 267.317 ms
"""
LOG_13_4 = LOG_13_0.replace("\n    48 bytes", "\nptxas         .     48 bytes")
PERFORMANCE_LOSS = (
    "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are "
    "serialized due to insufficient register resources for the wgmma pipeline in the function 'k'"
)


@pytest.mark.parametrize("log", [LOG_13_0, LOG_13_4], ids=["13.0", "13.4"])
def test_every_figure_is_read(log):
    resources = parse_resources(log, "k")
    assert resources.registers == 255
    assert resources.stack_bytes == 48
    assert (resources.spill_store_bytes, resources.spill_load_bytes) == (40, 36)
    assert resources.spill_bytes == 40 + 36
    assert (resources.barriers, resources.static_smem_bytes) == (3, 1024)
    assert resources.warnings == ()


def test_a_kernel_without_barriers_or_shared_memory_has_none():
    log = "    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\nUsed 8 registers\n"
    resources = parse_resources(log, "k")
    assert (resources.barriers, resources.static_smem_bytes) == (0, 0)


def test_remarks_of_ptxas_and_of_the_front_end_are_kept_once_each():
    front_end = "kernel.cu(3): warning #177-D: variable was declared but never referenced"
    log = f"{front_end}\n{PERFORMANCE_LOSS}\n{PERFORMANCE_LOSS}\n{LOG_13_0}"
    first, second = parse_resources(log, "k").warnings
    assert "#177-D" in first
    assert second.startswith("ptxas info : (C7510)")


def test_a_log_without_figures_is_refused():
    with pytest.raises(DamagedFile, match="k: the compiler's log states no registers"):
        parse_resources("ptxas info : nothing\n", "k")
