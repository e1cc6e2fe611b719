"""The backward configurations: texts, what is refused and why, and what fits where."""

from dataclasses import replace

import pytest

from flashsmith.arch import get as get_arch
from flashsmith.base.dtypes import DType
from flashsmith.base.errors import ArgumentError, OutOfResources, Unsupported
from flashsmith.compile.compiler import compile_kernel, compile_text
from flashsmith.compile.unit import structs
from flashsmith.kernels import parse_config, resolve_key
from flashsmith.kernels.catalogue import PARTS
from flashsmith.kernels.plans import plan
from flashsmith.kernels.sm80_backward.config import Sm80BackwardConfig
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.needs import Needs
from flashsmith.tuner.choose.choice import choose

BASE = parse_config("bwd(BF16, 128): dkv_64_64_4+dq_64_64_4+dkv_buffer+dq_buffer")
PROBLEM = AttentionProblem(2, 6, 3, 300, 200, 128, operation="backward")


def test_the_set_has_three_of_every_width_and_type_and_all_can_be_built():
    configs = resolve_key("bwd")
    assert len(configs) == len(set(configs)) == 18
    assert [config.refusal() for config in configs] == [None] * 18
    assert {(c.dtype, c.d_head) for c in configs} == {(t, d) for t in DType for d in (64, 128, 256)}


def test_the_set_gives_every_knob_more_than_one_value():
    for name in Sm80BackwardConfig.knobs():
        assert len({getattr(config, name) for config in resolve_key("bwd")}) > 1, name


@pytest.mark.parametrize("config", resolve_key("bwd"), ids=str)
def test_every_text_of_the_whole_and_of_its_kernels_parses_back(config):
    for one in (config, *config.kernels()):
        assert parse_config(one.short_form()) == one
        assert parse_config(one.identifier()) == one
        assert parse_config(one.kernel_name(Needs(("causal",)))) == one


def test_the_last_of_each_width_fits_every_architecture_and_the_first_of_256_does_not():
    for dtype in DType:
        for width in (64, 128, 256):
            *_, last = (c for c in resolve_key("bwd") if (c.dtype, c.d_head) == (dtype, width))
            for arch in ("sm_80", "sm_86", "sm_89", "sm_120"):
                last.require_buildable(get_arch(arch))
    largest = parse_config("bwd(BF16, 256): dkv_128_32_8+dq_128_32_8+apart")
    with pytest.raises(OutOfResources, match=r"164,096 bytes .* on sm_86.*101,376"):
        largest.require_buildable(get_arch("sm_86"))


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("bwd(BF16, 64): dkv_64_64_8+dq_64_64_4", "dkv_warp_has_16_rows"),
        ("bwd(BF16, 64): dkv_64_64_4+dq_32_64_4", "dq_warp_has_16_rows"),
        ("bwd(BF16, 256): dkv_64_64_4+dq_64_64_4", "dkv_gradients_fit_registers"),
        ("bwd(BF16, 256): dkv_64_64_4+dq_128_64_4+apart", "dq_gradients_fit_registers"),
    ],
)
def test_what_cannot_be_built_is_refused_by_a_rule_and_by_the_compiler(text, rule):
    config = parse_config(text)
    assert config.refusal().rule == rule
    with pytest.raises(Unsupported):
        config.require_buildable()
    assert BASE.refusal() is None


def test_both_languages_agree_on_every_derived_number():
    kernels = {k for c in resolve_key("bwd") for k in c.kernels() if k.smem_bytes()}
    for family in PARTS[1:]:
        own = sorted(kernel for kernel in kernels if type(kernel) is family)
        asserts = "".join(
            f"static_assert({c.to_cpp_struct()}.smem_bytes() == {c.smem_bytes()}\n"
            f"    && {c.to_cpp_struct()}.threads() == {c.threads}\n"
            f"    && {c.to_cpp_struct()}.gradient_registers() == {c.gradient_registers});\n"
            for c in own
        )
        text = f'{structs(family)}{asserts}extern "C" __global__ void none() {{}}'
        assert compile_text(text, "none", "sm_90a").cubin


def test_the_whole_is_no_kernel_and_says_which_there_are():
    with pytest.raises(Unsupported, match=r'plan of several kernels.*"bwd_delta\(BF16, 128\)"'):
        compile_kernel(BASE, Needs(), "sm_90a")


def test_a_part_runs_in_no_plan_of_its_own():
    with pytest.raises(Unsupported, match="one launch of a backward pass"):
        plan(BASE.of_queries, PROBLEM, sm_count=4)


def test_a_problem_of_the_other_operation_is_refused():
    forward = parse_config("(BF16, 128, 64, 64, 4): async+load_0_0_0_tiles")
    with pytest.raises(ArgumentError, match="the problem is a backward pass; these kernels"):
        plan(forward, PROBLEM, sm_count=4)
    with pytest.raises(ArgumentError, match="the problem is a forward pass; these kernels"):
        plan(BASE, replace(PROBLEM, operation="forward"), sm_count=4)


def test_what_is_chosen_for_a_backward_computes_it():
    for arch in ("sm_80", "sm_86", "sm_90a"):
        for d_head in (8, 64, 136, 256):
            choice = choose(replace(PROBLEM, d_head=d_head), arch)
            assert choice.config.OPERATION == "backward"
            choice.config.require_buildable(get_arch(arch))
    forward = choose(replace(PROBLEM, operation="forward"), "sm_80")
    assert forward.config.OPERATION == "forward"
    assert not any("bwd" in item.what for item in forward.rejected)
