"""Mutants of `runs`: where a cta's slices begin and end, and a ring that goes on between them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from mutation import judge
from test_decode_mutants import ARCH, IN_RUNS, Changed, changed_source

from flashsmith.check.cases import Case, inputs_of
from flashsmith.compile.compiler import compile_kernel
from flashsmith.emulator.options import EmulatorOptions
from flashsmith.kernels.plans import needs_of
from flashsmith.kernels.sm80_decode.plan import MOST_COUNTERS
from flashsmith.problem.attention import AttentionProblem
from flashsmith.runtime.emulated import EmulatedDevice
from flashsmith.runtime.run import run_arrays

# No slice, eleven, one of two, three, and more sequences than lanes look at in one turn.
PROBLEM = AttentionProblem(
    *(35, 3, 1, 1, 1400, 64, IN_RUNS.dtype), lse=True, k_lengths=True, page=16, pages=110
)
LENGTHS = (0, 1399, 130, 300, *(5,) * 29, 290, 17)


def given():
    lengths = np.array(LENGTHS, np.int32)
    return {**inputs_of(Case("runs", PROBLEM)), "k_lengths": lengths.view(np.uint32)}


INPUTS = given()
OPTIONS = EmulatorOptions(checks=False, mma_in_order=True)
ONE_BY_ONE = run_arrays(
    EmulatedDevice(options=OPTIONS), replace(IN_RUNS, runs=False), PROBLEM, INPUTS
)


def is_right(ptx, options):
    """Whether the bits are those of a cta a slice, and counters are left as they were."""
    for sm_count in (1, 3):
        device = Changed(ptx, replace(options, mma_in_order=True), sm_count)
        found = run_arrays(device, IN_RUNS, PROBLEM, INPUTS)
        same = all(np.array_equal(bits, found[name]) for name, bits in ONE_BY_ONE.items())
        if not same or device.download(device.workspace(1), 4 * MOST_COUNTERS).any():
            return False
    return True


SOURCES = {
    "a piece begins too early": ("runs.cuh", "at_ = share * each +", "at_ = share * each - 1 +"),
    "a sequence without keys is left out": ("runs.cuh", "k_len > kKeys ? 2 : 1)", "0)"),
    "sequences behind the first 32 left out": ("runs.cuh", ": measure()", ": 0 * measure()"),
    "the slice of the next piece": (
        "runs.cuh",
        "min(slices_before(stop_ - begin, shift), work.slices)",
        "min(slices_before(stop_ - begin, shift) + 1, work.slices)",
    ),
    "one slice counted of several": ("output.cuh", "gpu(counter, count)", "gpu(counter, 1)"),
    "the slice before not forgotten": ("compute.cuh", "team.forget();", ""),
    "copies before results are read": (
        "compute.cuh",
        "ptx::bar_sync();  // what they handed over has been read: copies may follow",
        "",
    ),
    "results over keys that were not read": (
        "team.cuh",
        "stage == 0 ? Kernel::kStages - 1 : stage - 1;",
        "stage;",
    ),
}


@pytest.mark.parametrize("kind", [None, *SOURCES])
def test_every_mutant_is_noticed(kind):
    if kind is None:
        ptx = compile_kernel(IN_RUNS, needs_of(IN_RUNS, PROBLEM), ARCH).ptx
    else:
        header, before, after = SOURCES[kind]
        ptx = changed_source(f"/decode/{header}", before, after, PROBLEM, IN_RUNS)
    assert judge(ptx, is_right, bool, range(2)).noticed == (kind is not None)
