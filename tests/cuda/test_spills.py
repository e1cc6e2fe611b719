"""Registers suffice: no spills where a warp owns 16 rows, next to none where it owns 32."""

import pytest

from flashsmith.compile.compiler import compile_kernel
from flashsmith.kernels.parse import parse_config
from flashsmith.problem.needs import Needs

NO_SPILLS = [
    "(FP16, 128, 64, 64, 4): async+load_0_0_0_tiles",
    "(FP16, 128, 64, 64, 4): async+eager+swizzled+load_0_2_2_tiles+opt_softmax",
    "(BF16, 128, 64, 32, 4): async+eager+swizzled+load_2_2_2_tiles+buffer+opt_softmax",
    "(BF16, 64, 64, 128, 4): async+eager+swizzled+load_0_0_0_tiles+opt_softmax",
    "(BF16, 256, 64, 64, 4): async+eager+swizzled+load_2_2_2_tiles+buffer",
]
FEW_SPILLS = [
    "(FP16, 128, 128, 128, 4): async+load_0_0_0_tiles",
    "(BF16, 128, 128, 64, 4): async+eager+swizzled+load_2_2_0_tiles+buffer",
    "(FP16, 128, 128, 64, 4): async+eager+swizzled+load_2_2_2_tiles",
    "(FP16, 128, 128, 64, 4): async+eager+swizzled+load_2_2_2_tiles+buffer",
    "(BF16, 128, 128, 64, 4): async+eager+swizzled+load_2_2_2_tiles+buffer+opt_softmax",
    "(FP16, 128, 128, 32, 4): async+eager+swizzled+load_0_2_2_tiles+opt_softmax",
]
# Two steps a block: V is waited for after the softmax, or 40 to 96 bytes would be spilled.
IN_STEPS = [
    "(FP16, 128, 128, 128, 4): async+eager+swizzled+load_2_2_2_tiles",
    "(FP16, 128, 128, 128, 4): async+eager+swizzled+load_2_2_2_tiles+buffer",
]


def spill_bytes(short_form, arch):
    return compile_kernel(parse_config(short_form), Needs(), arch).resources.spill_bytes


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("short_form", [*NO_SPILLS, *IN_STEPS])
def test_these_kernels_spill_nothing(short_form, arch):
    assert spill_bytes(short_form, arch) == 0


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("short_form", FEW_SPILLS)
def test_a_warp_of_32_rows_stores_and_loads_at_most_64_bytes(short_form, arch):
    assert spill_bytes(short_form, arch) <= 64


BACKWARD = [
    "bwd_dkv(BF16, 64, 128, 64, 8): buffer",
    "bwd_dq(BF16, 64, 128, 64, 8): buffer",
    "bwd_dkv(BF16, 128, 64, 32, 4): buffer",
    "bwd_dq(BF16, 128, 128, 64, 8): buffer",
    "bwd_dkv(BF16, 256, 128, 32, 8): of_DK",
    "bwd_dkv(BF16, 256, 128, 32, 8): of_DV",
    "bwd_dq(BF16, 256, 128, 32, 8)",
]
# 64 rows of scores beside 128 registers of gradients, or 32 rows a warp.
BACKWARD_FEW = [
    "bwd_dkv(BF16, 128, 128, 64, 8): buffer",
    "bwd_dkv(BF16, 64, 128, 64, 4): buffer",
    "bwd_dq(BF16, 64, 128, 64, 4): buffer",
]


@pytest.mark.parametrize("short_form", BACKWARD)
def test_backward_kernels_with_16_rows_a_warp_spill_nothing(short_form):
    assert spill_bytes(short_form, "sm_80") == 0


@pytest.mark.parametrize("short_form", BACKWARD_FEW)
def test_fuller_backward_kernels_store_and_load_at_most_64_bytes(short_form):
    assert spill_bytes(short_form, "sm_80") <= 64
