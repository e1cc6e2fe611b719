"""The backward kernels on mma.sync at their edges: lengths, masks, groups, narrow heads, NaN."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashsmith.base.dtypes import DType, from_bits, to_bits
from flashsmith.check.cases import LARGE_LOGITS, Case, full_cases, inputs_of, quick_cases
from flashsmith.check.verdict import check_case
from flashsmith.compile.compiler import compile_kernel
from flashsmith.compile.machine.cubin import machine_code
from flashsmith.emulator.options import EmulatorOptions
from flashsmith.kernels.arguments import TensorArg
from flashsmith.kernels.launch import SCRATCH
from flashsmith.kernels.parse import parse_config
from flashsmith.kernels.sm80_backward.parts import (
    KeyGradients,
    Sm80KeyGradientsConfig,
    Sm80QueryGradientsConfig,
)
from flashsmith.measure.timed_configs import random_inputs
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.needs import Needs
from flashsmith.runtime.devices import default_device, has_cuda
from flashsmith.runtime.emulated import EmulatedDevice
from flashsmith.runtime.run import prepare, run_arrays
from flashsmith.runtime.tensors import contiguous_tensors, uploaded

SMALL = parse_config("bwd(BF16, 64): dkv_64_32_4+dq_64_32_4")
BUFFERED = parse_config("bwd(FP16, 64): dkv_64_64_4+dq_64_64_4+dkv_buffer+dq_buffer")
APART = parse_config("bwd(BF16, 64): dkv_64_32_4+dq_64_32_4+dkv_buffer+apart")
CONFIGS = [SMALL, BUFFERED, APART]
_EMULATOR = EmulatedDevice()


def problem(config, q_len, k_len, **more):
    given = {"heads": 3, "kv_heads": 3, "d_head": 64, **more}
    return AttentionProblem(
        batch=1, q_len=q_len, k_len=k_len, dtype=config.dtype, operation="backward", **given
    )


def require_right(device, config, name, case_problem, **more):
    verdict = check_case(device, config, Case(name, case_problem, **more))
    assert verdict.ok, verdict


@pytest.mark.parametrize(
    "config",
    [
        *CONFIGS,
        parse_config("bwd(BF16, 128): dkv_64_32_4+dq_64_64_4+dkv_buffer"),
        parse_config("bwd(FP16, 256): dkv_64_32_4+dq_64_32_4+apart"),
        parse_config("bwd(BF16, 64): dkv_128_64_4+dq_128_64_4+dkv_buffer+dq_buffer"),
    ],
    ids=str,
)
def test_the_quick_cases_are_right(device, config):
    for case in quick_cases(config):
        check_case(device, config, case).require_ok(config.short_form())


@pytest.mark.parametrize("case", full_cases(BUFFERED), ids=lambda case: case.name)
def test_one_configuration_is_right_on_every_case(device, case):
    check_case(device, BUFFERED, case).require_ok(BUFFERED.short_form())


@pytest.mark.parametrize("config", CONFIGS, ids=str)
@pytest.mark.parametrize(("q_len", "k_len"), [(1, 1), (1, 130), (130, 1), (65, 129), (31, 63)])
def test_any_length_is_right(device, config, q_len, k_len):
    require_right(device, config, "lengths", problem(config, q_len, k_len))


@pytest.mark.parametrize("diagonal", [-100, -40, -1, 0, 17, 89, 90])
def test_any_diagonal_is_right_and_rows_without_keys_give_nothing(device, diagonal):
    for config in (SMALL, BUFFERED):
        causal = problem(config, 70, 90, kv_heads=1, causal=True, diagonal=diagonal)
        require_right(device, config, "diagonal", causal)


@pytest.mark.parametrize(("heads", "kv_heads"), [(5, 1), (6, 2), (7, 7)])
def test_any_group_is_summed_up(device, heads, kv_heads):
    grouped = problem(BUFFERED, 70, 130, heads=heads, kv_heads=kv_heads, causal=True)
    require_right(device, BUFFERED, "group", grouped, placement="transposed")


@pytest.mark.parametrize("d_head", [8, 40])
def test_a_narrower_head_is_run_without_a_copy(device, d_head):
    narrow = problem(SMALL, 70, 100, causal=True, d_head=d_head)
    require_right(device, SMALL, "narrow", narrow, placement="padded")


@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_120"])
def test_the_code_of_other_architectures_is_right(arch):
    device = EmulatedDevice(arch)
    for case in quick_cases(APART):
        check_case(device, APART, case).require_ok(APART.short_form())


@settings(max_examples=12, deadline=None, derandomize=True)
@given(
    lengths=st.tuples(st.integers(1, 100), st.integers(1, 140)),
    heads=st.sampled_from([(1, 1), (3, 3), (4, 2), (5, 1)]),
    diagonal=st.one_of(st.none(), st.integers(-60, 60)),
    width=st.sampled_from([8, 24, 56, 64]),
    placement=st.sampled_from(["contiguous", "padded", "transposed"]),
    config=st.sampled_from(CONFIGS),
)
def test_any_problem_is_right(lengths, heads, diagonal, width, placement, config):
    mask = {} if diagonal is None else {"causal": True, "diagonal": diagonal}
    drawn = problem(
        config, *lengths, heads=heads[0], kv_heads=heads[1], d_head=width, dlse=True, **mask
    )
    require_right(_EMULATOR, config, "drawn", drawn, placement=placement)


def test_large_logits_neither_overflow_nor_cancel_to_nan(device):
    for config in (SMALL, BUFFERED):
        require_right(
            device, config, "large", problem(config, 65, 130, kv_heads=1), gain=LARGE_LOGITS
        )


def test_a_nan_of_one_query_row_reaches_no_other_row_of_dq(device):
    case = Case("nan", problem(SMALL, 70, 100))
    inputs = {name: bits.copy() for name, bits in inputs_of(case).items()}
    inputs["do"][0, 33, 1, 2] = to_bits(np.float32([np.nan]), DType.BF16)[0]
    dq = from_bits(run_arrays(device, SMALL, case.problem, inputs)["dq"], DType.BF16)
    rows = np.isnan(dq).any(axis=-1)
    assert rows[0, 33, 1]
    assert rows.sum() == 1


def test_no_query_rows_give_zero_gradients_of_keys_and_the_reverse(device):
    for lengths, zero in (((0, 40), ("dk", "dv")), ((40, 0), ("dq",))):
        empty = problem(SMALL, *lengths)
        shapes = {"q": lengths[0], "k": lengths[1], "v": lengths[1], "o": lengths[0]}
        shapes["do"] = lengths[0]
        inputs = {n: np.zeros((1, rows, 3, 64), np.uint16) for n, rows in shapes.items()}
        inputs["lse"] = np.zeros((1, 3, lengths[0]), np.uint32)
        found = run_arrays(device, SMALL, empty, inputs)
        for name in zero:
            assert found[name].size
            assert not found[name].any()


@pytest.mark.parametrize("config", [BUFFERED, APART], ids=str)
def test_the_bits_are_the_same_on_every_schedule(config):
    case = Case("repeated", problem(config, 70, 130, heads=6, kv_heads=2, causal=True))
    seen = set()
    for seed in range(3):
        options = EmulatorOptions(seed=seed, delayed_landing=True, mma_in_order=True)
        found = run_arrays(EmulatedDevice(options=options), config, case.problem, inputs_of(case))
        seen.add(b"".join(found[name].tobytes() for name in ("dq", "dk", "dv")))
    assert len(seen) == 1


def test_reads_of_shared_memory_have_no_bank_conflicts():
    device = EmulatedDevice(options=EmulatorOptions(counters=True))
    case = Case("even", problem(BUFFERED, 128, 128))
    prepared = prepare(device, BUFFERED, case.problem)
    places, buffers = contiguous_tensors(case.problem, inputs_of(case))
    with uploaded(device, buffers) as held:
        call = {**held.call(places), SCRATCH: TensorArg(device.allocate(prepared.scratch_bytes))}
        for step in prepared.steps:
            step.bind((step.launch.arguments(call).pack(case.problem, device.tensor_map),))(0)
            assert device.report().counters.bank_conflicts == 0, step.launch.config


@pytest.mark.gpu
@pytest.mark.skipif(not has_cuda(), reason="needs a GPU")
def test_a_hundred_repeats_give_the_same_bits_on_a_gpu():
    device = default_device("cuda")
    config = parse_config("bwd(BF16, 128): dkv_128_64_8+dq_128_64_8+dkv_buffer+dq_buffer")
    full_size = AttentionProblem(2, 8, 2, 4096, 4096, 128, operation="backward")
    inputs = random_inputs(full_size)
    first = run_arrays(device, config, full_size, inputs)
    for _ in range(100):
        again = run_arrays(device, config, full_size, inputs)
        assert all((first[name] == again[name]).all() for name in first)


KEYS = Sm80KeyGradientsConfig(DType.FP16, 64, 64, 64, 4, KeyGradients.BOTH, False)
QUERIES = Sm80QueryGradientsConfig(DType.FP16, 64, 64, 64, 4, False)
OTHERS = [
    (KEYS, {"dtype": DType.BF16}),
    (KEYS, {"d_head": 128}),
    (KEYS, {"B_c": 128}),
    (KEYS, {"B_r": 32}),
    (replace(KEYS, B_c=128), {"n_warps": 8}),
    (KEYS, {"gradients": KeyGradients.DK}),
    (KEYS, {"gradients": KeyGradients.DV}),
    (KEYS, {"buffered": True}),
    (QUERIES, {"dtype": DType.BF16}),
    (QUERIES, {"d_head": 128}),
    (QUERIES, {"B_r": 128}),
    (QUERIES, {"B_c": 32}),
    (replace(QUERIES, B_r=128), {"n_warps": 8}),
    (QUERIES, {"buffered": True}),
]


def test_every_field_of_both_kernels_is_tried():
    assert {name for c, other in OTHERS for name in other if c.NAME == KEYS.NAME} == set(
        KEYS.knobs()
    )
    assert {name for c, other in OTHERS for name in other if c.NAME == QUERIES.NAME} == set(
        QUERIES.knobs()
    )


@pytest.mark.parametrize(("config", "other"), OTHERS, ids=str)
def test_a_field_alone_changes_the_machine_code(config, other):
    codes = {
        machine_code(compile_kernel(one, Needs(), "sm_80").cubin)
        for one in (config, replace(config, **other))
    }
    assert len(codes) == 2
