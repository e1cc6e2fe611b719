"""No knob is dead: two kernels that differ in one field differ in machine code."""

from dataclasses import fields, replace

import pytest

from flashsmith.base.dtypes import DType
from flashsmith.compile.compiler import compile_kernel
from flashsmith.compile.machine.cubin import machine_code
from flashsmith.kernels.parse import parse_config
from flashsmith.kernels.sm80_forward.config import FlashForwardKernelConfig
from flashsmith.problem.needs import Needs

BASE = parse_config("(FP16, 128, 64, 64, 4): async+eager+swizzled+load_2_2_2_tiles+buffer")
# the field and its other value; where the base leaves no other value, the base to take instead
PAIRS = {
    "dtype": (BASE, DType.BF16),
    "d_head": (BASE, 64),
    "B_r": (BASE, 128),
    "B_c": (BASE, 32),
    "n_warps": (replace(BASE, B_r=128), 8),
    "async_copy": (replace(BASE, eager_load_blocks=False), False),
    "eager_load_blocks": (BASE, False),
    "swizzled": (BASE, False),
    "Q_mma_load_K_tiles": (BASE, 0),
    "K_mma_load_K_tiles": (replace(BASE, Q_mma_load_K_tiles=0), 4),
    "V_mma_load_K_tiles": (BASE, 4),
    "mma_double_buffer_loads": (BASE, False),
    "optimized_softmax": (BASE, True),
}


def code(config, arch):
    assert config.refusal() is None, config.refusal()
    return machine_code(compile_kernel(config, Needs(), arch).cubin)


def test_every_field_has_a_pair():
    assert list(PAIRS) == [field.name for field in fields(FlashForwardKernelConfig)]


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("field", PAIRS)
def test_a_field_alone_changes_the_machine_code(field, arch):
    config, other = PAIRS[field]
    assert getattr(config, field) != other
    assert code(config, arch) != code(replace(config, **{field: other}), arch)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_the_number_of_tiles_of_a_load_survives_ptxas(arch):
    loads = ["2_2_2", "0_2_2", "4_4_0", "2_2_4", "8_8_8", "0_0_2"]
    codes = {
        code(parse_config(f"(FP16, 128, 64, 64, 4): async+eager+swizzled+load_{n}_tiles"), arch)
        for n in loads
    }
    assert len(codes) == len(loads)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_with_whole_blocks_there_is_nothing_to_buffer(arch):
    whole = replace(BASE, Q_mma_load_K_tiles=0, K_mma_load_K_tiles=0, V_mma_load_K_tiles=0)
    assert code(whole, arch) == code(replace(whole, mma_double_buffer_loads=False), arch)
