"""Python and C++ say the same of a configuration: derived numbers, and what cannot be built."""

import pytest

from flashsmith.base.errors import CompileError
from flashsmith.compile.compiler import compile_text
from flashsmith.compile.unit import structs
from flashsmith.kernels import CATALOGUE, get_kernel_configs, parse_config

pytest.importorskip("nvidia", reason="the compiler has no wheel here")

MMA = CATALOGUE[0]
SMEM_OF_AN_SM = 164 * 1024

UNIT = """\
{structs}
#include "flashsmith/sm80/static_config.cuh"
inline constexpr {type} kConfig = {literal};
{statements}
extern "C" __global__ void facts() {{}}
"""

MORE = [
    "(FP16, 128, 64, 128, 4): async+eager+swizzled+load_0_2_2_tiles+buffer",
    "(BF16, 256, 128, 128, 8): async+load_0_4_8_tiles",
    "(BF16, 64, 128, 128, 4): swizzled+load_2_2_4_tiles+buffer+opt_softmax",
    "(FP16, 256, 64, 128, 4): async+load_0_0_0_tiles+opt_softmax",
]
REFUSED = [
    "(FP16, 128, 64, 64, 4): eager+load_2_2_2_tiles",
    "(FP16, 128, 64, 64, 4): async+load_2_4_2_tiles",
    "(FP16, 128, 64, 64, 8): async+load_2_2_2_tiles",
    "(FP16, 128, 64, 32, 4): async+load_2_2_4_tiles+buffer",
    "(FP16, 128, 64, 64, 4): async+load_32_32_2_tiles",
    "(FP16, 256, 128, 64, 4): async+load_2_2_2_tiles",
]


def compile_facts(config, statements):
    text = UNIT.format(
        structs=structs(MMA),
        type=config.CPP_TYPE,
        literal=config.to_cpp_struct(),
        statements=statements,
    )
    return compile_text(text, "facts", "sm_80")


@pytest.mark.parametrize(
    "config", [*get_kernel_configs("smoke"), *map(parse_config, MORE)], ids=str
)
def test_every_derived_number_is_the_same_in_both_languages(config):
    static = "flashsmith::sm80::StaticForwardKernelConfig<kConfig>"
    plans, registers = config.fragments(), config.registers()
    facts = {
        "kConfig.threads()": config.threads,
        "kConfig.smem_bytes()": config.smem_bytes(),
        "kConfig.smem_bytes(4)": config.smem_bytes(4),
        f"kConfig.num_ctas_per_sm({SMEM_OF_AN_SM})": config.num_ctas_per_sm(SMEM_OF_AN_SM),
        "kConfig.rows_per_warp()": config.rows_per_warp,
        "kConfig.step_cols()": config.step_cols,
        "kConfig.O_registers()": registers.o,
        f"int(sizeof({static}::S) / 4)": registers.s,
        f"int(sizeof({static}::O) / 4)": registers.o,
        f"{static}::QKGroups::kGroups": plans["K"].steps,
        f"{static}::QKGroups::kStages": plans["K"].stages,
        f"{static}::PVGroups::kGroups": plans["V"].steps,
        f"{static}::PVGroups::kStages": plans["V"].stages,
    }
    asserts = [f'static_assert({cpp} == {value}, "{value}");' for cpp, value in facts.items()]
    compile_facts(config, "\n".join([*asserts, f"static_assert({static}::valid_config());"]))


@pytest.mark.parametrize("text", REFUSED)
def test_what_python_refuses_to_build_does_not_compile_and_ends_in_a_sentence(text):
    config = parse_config(text)
    assert config.refusal() is not None
    valid = "static_assert(flashsmith::sm80::StaticForwardKernelConfig<kConfig>::valid_config());"
    with pytest.raises(CompileError) as caught:
        compile_facts(config, valid)
    assert "static assertion failed" in caught.value.log


def test_a_forgotten_field_does_not_compile():
    config = get_kernel_configs("smoke")[0]
    literal = config.to_cpp_struct().replace(", .optimized_softmax = false", "")
    text = UNIT.format(structs=structs(MMA), type=config.CPP_TYPE, literal=literal, statements="")
    with pytest.raises(CompileError):
        compile_text(text, "facts", "sm_80")
