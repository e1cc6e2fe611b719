"""A plan on a device: layouts, empty problems, what is refused, and what a warm call skips."""

import threading
from dataclasses import replace

import numpy as np
import pytest

from flashsmith import arch
from flashsmith.base.dtypes import DType, from_bits, to_bits
from flashsmith.base.errors import ArgumentError, OutOfResources, Unsupported
from flashsmith.check.tolerance import distance, expectation
from flashsmith.compile.compiler import compile_kernel
from flashsmith.kernels import parse_config
from flashsmith.kernels.arguments import TensorArg
from flashsmith.kernels.launch import LaunchGeometry
from flashsmith.kernels.plans import plan
from flashsmith.measure.timed_configs import random_inputs
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.signature import FORWARD
from flashsmith.runtime.limits import require_fits
from flashsmith.runtime.run import prepare, require_aligned, run_arrays
from flashsmith.runtime.tensors import contiguous_tensors, uploaded

CONFIG = parse_config("(BF16, 64, 64, 32, 4): async+swizzled+load_2_2_2_tiles")
PROBLEM = AttentionProblem(2, 3, 1, 69, 101, 64, DType.BF16, causal=True)


def inputs_of(problem, seed=0):
    random = np.random.default_rng(seed)
    return {
        role.name: to_bits(random.standard_normal(role.shape(problem)), problem.dtype).reshape(
            role.shape(problem)
        )
        for role in FORWARD.inputs(problem)
    }


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
def test_arrays_of_either_layout_give_attention_and_its_lse(device, layout):
    problem = replace(PROBLEM, layout=layout, lse=True)
    inputs = inputs_of(problem)
    found = run_arrays(device, CONFIG, problem, inputs)
    outputs = {"o": from_bits(rows_first(found["o"], layout), problem.dtype)}
    outputs["lse"] = found["lse"].view(np.float32)
    require_right(problem, {name: rows_first(x, layout) for name, x in inputs.items()}, outputs)


def rows_first(array, layout):
    return array if layout == "bshd" else np.ascontiguousarray(array.transpose(0, 2, 1, 3))


def require_right(problem, inputs, outputs):
    expected = expectation(problem, inputs)
    for name, got in outputs.items():
        found = distance(name, expected[name], got)
        assert found.ok, found


def test_a_scale_is_applied(device):
    problem = replace(PROBLEM, scale=1e-6)  # every visible key weighs the same
    inputs = inputs_of(problem)
    found = run_arrays(device, CONFIG, problem, inputs)
    v = from_bits(inputs["v"], problem.dtype)
    o = from_bits(found["o"], problem.dtype)
    require_right(problem, inputs, {"o": o})
    means = v[:, : 101 - 68].mean(axis=1, keepdims=True).repeat(3, 2)
    # The truth is these means to a millionth, so the tolerance of the output holds for them.
    assert np.abs(expectation(problem, inputs)["o"].truth[:, :1] - means).max() < 1e-4
    assert "lse" not in found


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
def test_without_keys_the_output_is_zero_and_the_lse_minus_infinity(device, layout):
    problem = replace(PROBLEM, k_len=0, layout=layout, lse=True)
    found = run_arrays(device, CONFIG, problem, inputs_of(problem))
    assert found["o"].shape == inputs_of(problem)["q"].shape
    assert not found["o"].any()
    assert np.isneginf(found["lse"].view(np.float32)).all()


@pytest.mark.parametrize("empty", ["batch", "q_len"])
def test_an_empty_output_launches_nothing(device, empty):
    problem = replace(PROBLEM, **{empty: 0}, diagonal=0, lse=True)
    found = run_arrays(device, CONFIG, problem, inputs_of(problem))
    assert (found["o"].size, found["lse"].size) == (0, 0)
    assert prepare(device, CONFIG, problem).steps == ()


def test_a_kernel_that_was_loaded_is_not_compiled_again(device):
    asked = []

    def counted(config, needs, arch):
        asked.append(needs)
        return compile_kernel(config, needs, arch)

    for q_len in (7, 8, 9):
        prepare(device, CONFIG, replace(PROBLEM, q_len=q_len), compile_with=counted)
    assert len(asked) == 1
    prepare(device, CONFIG, replace(PROBLEM, lse=True), compile_with=counted)
    assert len(asked) == 2


def test_arguments_are_packed_once_for_tensors_that_lie_where_they_lay(device):
    problem = replace(PROBLEM, q_len=13)
    prepared = prepare(device, CONFIG, problem)
    inputs = inputs_of(problem)
    places, buffers = contiguous_tensors(problem, inputs)
    with uploaded(device, buffers) as held:
        for _ in range(3):
            prepared(held.call(places))
        assert len(prepared._starts) == 1


def test_kernels_can_come_from_elsewhere_than_the_compiler(device):
    asked = []

    def from_elsewhere(config, needs, arch):
        asked.append((config, needs.identifier(), arch))
        return compile_kernel(config, needs, arch)

    problem = replace(PROBLEM, q_len=11, lse=True)
    prepare(device, CONFIG, problem, compile_with=from_elsewhere)
    assert asked == [(CONFIG, "causal_lse_ragged_q_ragged_k", device.arch)]


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"dtype": DType.FP16}, ArgumentError, "the problem is FP16; give tensors of BF16"),
        ({"d_head": 72}, Unsupported, "d_head is 72; this kernel takes multiples of 8 up to 64"),
        ({"d_head": 60}, Unsupported, "d_head is 60; this kernel takes multiples of 8"),
        ({"heads": 0, "kv_heads": 0}, ArgumentError, "heads is 0 and kv_heads is 0"),
    ],
)
def test_a_problem_the_kernel_cannot_compute_is_refused(change, error, says):
    with pytest.raises(error, match=says):
        plan(CONFIG, replace(PROBLEM, **change), sm_count=4)


def test_arrays_that_do_not_fit_the_problem_are_refused(device):
    inputs = inputs_of(PROBLEM)
    with pytest.raises(ArgumentError, match=r"k has shape \(2, 100, 1, 64\).* asks for \(2, 101"):
        run_arrays(device, CONFIG, PROBLEM, inputs | {"k": inputs["k"][:, 1:]})
    wide = inputs["q"].astype(np.float32)
    with pytest.raises(ArgumentError, match=r"q has shape .* 4-byte elements"):
        run_arrays(device, CONFIG, PROBLEM, inputs | {"q": wide})


@pytest.mark.parametrize(
    ("name", "arg"),
    [
        ("q", TensorArg(0x1008, 8, 8, 8)),
        ("v", TensorArg(0, 8, 12, 8)),
        ("o", TensorArg(0, 4, 8, 8)),
    ],
)
def test_rows_that_begin_between_16_bytes_are_refused(name, arg):
    call = dict.fromkeys("qkvo", TensorArg(0x1000, 8, 8, 8)) | {name: arg}
    with pytest.raises(ArgumentError, match=f"{name} begins at {arg.address:#x} with strides"):
        require_aligned(PROBLEM, call)


@pytest.fixture(scope="module")
def kernel():
    needs = plan(CONFIG, PROBLEM, sm_count=4)[0].needs
    return compile_kernel(CONFIG, needs, "sm_90a")


@pytest.mark.parametrize(
    ("geometry", "registers", "says"),
    [
        (
            LaunchGeometry((1, 1, 1), 128, 232_449),
            128,
            "needs 232,449 bytes of shared memory .* on sm_90a, the limit is 232,448; lower B_r",
        ),
        (
            LaunchGeometry((1, 1, 1), 512, 0),
            168,
            "needs 86,016 registers .* 65,536; lower the warps",
        ),
        (LaunchGeometry((1, 1, 1), 1056, 0), 32, "needs 1,056 threads a block, .* 1,024"),
        (LaunchGeometry((2**31, 1, 1), 32, 0), 32, "blocks a launch, .* split the batch"),
    ],
)
def test_what_does_not_fit_a_block_says_need_limit_and_what_to_lower(
    kernel, geometry, registers, says
):
    large = replace(kernel, resources=replace(kernel.resources, registers=registers))
    with pytest.raises(OutOfResources, match=says):
        require_fits(CONFIG.short_form(), large, geometry, arch.get("sm_90a"))


def test_a_kernel_that_fits_passes(kernel):
    geometry = plan(CONFIG, PROBLEM, sm_count=4)[0].geometry
    require_fits(CONFIG.short_form(), kernel, geometry, arch.get("sm_90a"))


BACKWARD = parse_config("bwd(BF16, 64): dkv_64_32_4+dq_64_32_4")


def test_the_kernels_of_a_plan_are_compiled_side_by_side(device):
    """Each waits for the others to have begun: one after the other, they would never end."""
    problem = AttentionProblem(1, 2, 1, 33, 40, 64, DType.BF16, operation="backward")
    together = threading.Barrier(3, timeout=60)
    names = []

    def waiting(config, needs, arch):
        together.wait()
        names.append(config.NAME)
        return compile_kernel(config, needs, arch)

    prepared = prepare(device, BACKWARD, problem, compile_with=waiting)
    assert [step.launch.config.NAME for step in prepared.steps] == [
        "sm80_backward_delta",
        "sm80_backward_dkv",
        "sm80_backward_dq",
    ]
    assert sorted(names) == [step.launch.config.NAME for step in prepared.steps]
    again = prepare(device, BACKWARD, replace(problem, q_len=34), compile_with=waiting)
    assert len(names) == 3
    assert again.scratch_bytes == 2 * 128 * 8


def test_inputs_for_timing_a_backward_have_weights_that_add_up_to_about_one():
    problem = AttentionProblem(1, 2, 1, 200, 300, 64, DType.BF16, causal=True, operation="backward")
    given = random_inputs(problem)
    q, k = (from_bits(given[name], DType.BF16) for name in "qk")
    scores = np.einsum("bqhd,bkd->bhqk", q, k[:, :, 0]) / 8
    lse = given["lse"].view(np.float32)
    sums = np.where(problem.mask.visible(), np.exp(scores - lse[..., None]), 0).sum(-1)
    assert lse.shape == (1, 2, 200)
    assert np.median(sums) == pytest.approx(1, abs=0.2)
