"""What C++ derives from a configuration is what Python says; what cannot be built says why."""

from dataclasses import replace
from itertools import pairwise

import pytest

from flashsmith.base.errors import CompileError
from flashsmith.compile.compiler import compile_kernel, compile_text
from flashsmith.compile.unit import structs
from flashsmith.kernels.parse import parse_config
from flashsmith.kernels.sets import resolve_key
from flashsmith.kernels.sm80_forward.config import FlashForwardKernelConfig
from flashsmith.problem.needs import Needs

STRUCTS = structs(FlashForwardKernelConfig)
BASE = parse_config("(FP16, 128, 64, 64, 4): async+eager+swizzled+load_2_2_2_tiles")


def test_shared_plan_threads_and_registers_are_those_of_python():
    configs = sorted({replace(c, d_head=d) for c in resolve_key("all") for d in (64, 128, 256)})
    asserts = "".join(
        f"static_assert(sizeof(flashsmith::sm80::SharedPlan<{c.to_cpp_struct()}>)"
        f" == {c.smem_bytes()}\n"
        f"    && {c.to_cpp_struct()}.smem_bytes() == {c.smem_bytes()}\n"
        f"    && {c.to_cpp_struct()}.threads() == {c.threads}\n"
        f"    && {c.to_cpp_struct()}.O_registers() == {c.registers().o}\n"
        f"    && {c.to_cpp_struct()}.num_ctas_per_sm(232448) == {c.num_ctas_per_sm(232448)});\n"
        for c in configs
    )
    text = f'{STRUCTS}#include "flashsmith/sm80/static_config.cuh"\n{asserts}'
    assert compile_text(text + 'extern "C" __global__ void none() {}', "none", "sm_90a").cubin


def test_configurations_are_ordered_as_in_python():
    configs = resolve_key("all")
    pairs = pairwise(configs)
    asserts = "".join(
        f"static_assert({a.to_cpp_struct()} < {b.to_cpp_struct()});\n"
        f"static_assert(!({b.to_cpp_struct()} < {a.to_cpp_struct()}));\n"
        for a, b in pairs
    )
    text = f"{STRUCTS}{asserts}"
    assert configs == sorted(configs)
    assert compile_text(text + 'extern "C" __global__ void none() {}', "none", "sm_90a").cubin


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"async_copy": False}, "eager_load_blocks needs async_copy"),
        ({"n_warps": 8}, "a warp must own a multiple of 16 query rows"),
        ({"Q_mma_load_K_tiles": 4}, "Q tiles must equal K tiles or be 0"),
        (
            {"Q_mma_load_K_tiles": 32, "K_mma_load_K_tiles": 32},
            "Q and K tiles must not exceed d_head / 8",
        ),
        ({"V_mma_load_K_tiles": 16}, "V tiles must not exceed B_c / 8"),
        ({"d_head": 256, "B_r": 128}, "the output rows of a warp must fit 128 registers"),
    ],
)
def test_what_cannot_be_built_says_why_in_a_sentence(changes, sentence):
    with pytest.raises(CompileError, match=sentence):
        compile_kernel(replace(BASE, **changes), Needs(), "sm_90a")


@pytest.mark.parametrize("tiles", ["1", "3", "6"])
def test_tiles_that_are_no_power_of_two_are_refused(tiles):
    literal = BASE.to_cpp_struct().replace("_K_tiles = 2", f"_K_tiles = {tiles}")
    text = (
        f'{STRUCTS}#include "flashsmith/sm80/static_config.cuh"\n'
        f"static_assert(flashsmith::sm80::StaticForwardKernelConfig<{literal}>::valid_config());\n"
        f'extern "C" __global__ void none() {{}}'
    )
    with pytest.raises(CompileError, match="must be 0 or a power of two above 1"):
        compile_text(text, "none", "sm_90a")


@pytest.mark.parametrize("field", ["dtype", "swizzled", "optimized_softmax"])
def test_a_forgotten_field_does_not_compile(field):
    head, _, body = BASE.to_cpp_struct().rstrip("}").partition("{")
    kept = [part for part in body.split(", ") if not part.startswith(f".{field} ")]
    assert len(kept) == len(body.split(", ")) - 1
    text = (
        f"{STRUCTS}"
        f"inline constexpr {head} kConfig{{{', '.join(kept)}}};\n"
        f'extern "C" __global__ void none() {{}}'
    )
    with pytest.raises(CompileError, match="must have a constant value"):
        compile_text(text, "none", "sm_90a")
