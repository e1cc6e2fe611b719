"""Gradients on mma.sync in five products: edges, roles, and sums of dQ in one order."""

from dataclasses import replace

import numpy as np
import pytest

from flashsmith.base.dtypes import DType
from flashsmith.base.errors import Unsupported
from flashsmith.check.cases import LARGE_LOGITS, Case, inputs_of, quick_cases
from flashsmith.check.verdict import check_case
from flashsmith.compile.compiler import compile_kernel
from flashsmith.compile.machine.cubin import machine_code
from flashsmith.emulator.options import EmulatorOptions
from flashsmith.kernels.arguments import TensorArg
from flashsmith.kernels.launch import SCRATCH
from flashsmith.kernels.parse import parse_config
from flashsmith.kernels.plans import plan
from flashsmith.measure.timed_configs import random_inputs
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.needs import Needs
from flashsmith.runtime.devices import default_device, has_cuda
from flashsmith.runtime.emulated import EmulatedDevice
from flashsmith.runtime.run import prepare, run_arrays
from flashsmith.runtime.tensors import contiguous_tensors, uploaded

TOGETHER = parse_config("bwd_sums(BF16, 64, 64, 64, 4): buffer+turn_2+rounds")
ROLES = parse_config("bwd_sums(FP16, 64, 64, 64, 4): roles+rounds")
FREE = parse_config("bwd_sums(BF16, 64, 64, 64, 4): roles+buffer+unordered")
APART = parse_config("bwd_sums(BF16, 64, 64, 64, 4): roles")
WIDE = parse_config("bwd_sums(BF16, 128, 128, 64, 8): roles+buffer+turn_2+rounds")
WIDEST = parse_config("bwd_sums(BF16, 256, 64, 64, 8): roles+buffer")
GRADIENTS = ("dq", "dk", "dv")


def problem(config, q_len, k_len, **more):
    given = {"heads": 3, "kv_heads": 3, "d_head": config.d_head, **more}
    return AttentionProblem(
        batch=1, q_len=q_len, k_len=k_len, dtype=config.dtype, operation="backward", **given
    )


def require_right(device, config, name, case_problem, **more):
    verdict = check_case(device, config, Case(name, case_problem, **more))
    assert verdict.ok, verdict


@pytest.mark.parametrize("config", [TOGETHER, ROLES, FREE, WIDE, WIDEST], ids=str)
def test_the_quick_cases_are_right(device, config):
    for case in quick_cases(config):
        check_case(device, config, case).require_ok(config.short_form())


@pytest.mark.parametrize("config", [TOGETHER, ROLES], ids=str)
@pytest.mark.parametrize(("q_len", "k_len"), [(1, 1), (1, 200), (200, 1), (65, 193)])
def test_any_length_is_right(device, config, q_len, k_len):
    require_right(device, config, "lengths", problem(config, q_len, k_len, kv_heads=1))


@pytest.mark.parametrize("config", [TOGETHER, ROLES], ids=str)
@pytest.mark.parametrize(
    "mask",
    [
        *({"causal": True, "diagonal": diagonal} for diagonal in (-100, -40, 0, 17, 150)),
        {"window_left": 70, "causal": True},
        {"window_left": 30, "window_right": 33},
        {"window_left": 20, "window_right": 5, "diagonal": 0},
        {"alibi": True, "causal": True, "diagonal": -30},
    ],
    ids=str,
)
def test_any_mask_is_right_and_rows_that_see_nothing_have_no_gradient(device, config, mask):
    more = {"heads": 6, "kv_heads": 2} if "alibi" in mask else {}
    masked = problem(config, 150, 210, **more, **mask)
    require_right(device, config, "masks", masked, placement="transposed")


@pytest.mark.parametrize("d_head", [8, 40])
def test_a_narrower_head_is_run_without_a_copy(device, d_head):
    narrow = problem(ROLES, 70, 200, causal=True, d_head=d_head, dlse=True)
    require_right(device, ROLES, "narrow", narrow, placement="padded")


def test_large_logits_neither_overflow_nor_cancel_to_nan(device):
    for config in (TOGETHER, ROLES):
        large = problem(config, 65, 130, kv_heads=1)
        require_right(device, config, "large", large, gain=LARGE_LOGITS)


def test_no_query_rows_give_zero_gradients_of_keys_and_the_reverse(device):
    for lengths, zero in (((0, 40), ("dk", "dv")), ((40, 0), ("dq",))):
        empty = problem(TOGETHER, *lengths)
        shapes = {"q": lengths[0], "k": lengths[1], "v": lengths[1], "o": lengths[0]}
        shapes["do"] = lengths[0]
        inputs = {n: np.zeros((1, rows, 3, 64), np.uint16) for n, rows in shapes.items()}
        inputs["lse"] = np.zeros((1, 3, lengths[0]), np.uint32)
        found = run_arrays(device, TOGETHER, empty, inputs)
        for name in zero:
            assert found[name].size
            assert not found[name].any()


@pytest.mark.parametrize("arch", ["sm_80", "sm_86"])
def test_sums_of_single_numbers_are_right_where_there_are_none_of_vectors(arch):
    device = EmulatedDevice(arch)
    require_right(device, ROLES, arch, problem(ROLES, 150, 210, kv_heads=1, causal=True))


class Poisoned(EmulatedDevice):
    """Scratch memory holds NaN before every call."""

    def scratch(self, n_bytes, stream=0):
        address = super().scratch(n_bytes, stream)
        self.fill(address, 0xFFFFFFFF, n_bytes // 4)
        return address


# The second mask hides all keys from the last q tiles, whose windows begin behind the last key, in
# its kv block.
@pytest.mark.parametrize(
    "masked",
    [
        {"q_len": 150, "k_len": 210, "diagonal": -70},
        {"q_len": 213, "k_len": 104, "diagonal": 0, "window_left": 20},
    ],
    ids=["causal", "window"],
)
@pytest.mark.parametrize("config", [TOGETHER, FREE, APART], ids=str)
def test_what_scratch_held_before_means_nothing(config, masked):
    found = problem(config, kv_heads=1, causal=True, **masked)
    require_right(Poisoned(), config, "poisoned", found)


def bits(config, sm_count, seed):
    """Of gradients and of dQ's sums in float32: four kv blocks add to every q tile."""
    case = Case("repeated", problem(config, 70, 4 * config.B_c - 5, kv_heads=1))
    options = EmulatorOptions(seed=seed, delayed_landing=True, mma_in_order=True, ordered_sums=True)
    device = EmulatedDevice(sm_count=sm_count, options=options)
    found = run_arrays(device, config, case.problem, inputs_of(case))
    launch = plan(config, case.problem, sm_count=sm_count)[1]
    begin, end = launch.sums.place, launch.sums.counters
    sums = device.download(device.scratch(launch.scratch_bytes) + begin, end - begin)
    return tuple(found[name].tobytes() for name in GRADIENTS), sums.tobytes()


@pytest.mark.parametrize("config", [TOGETHER, ROLES], ids=str)
def test_the_bits_are_the_same_on_every_schedule_and_number_of_sms(config):
    places = [(1, 0), (7, 1), (7, 2), (132, 3)]
    assert len({bits(config, sms, seed) for sms, seed in places}) == 1


def test_accesses_of_shared_memory_have_no_bank_conflicts():
    device = EmulatedDevice(options=EmulatorOptions(counters=True))
    case = Case("even", problem(ROLES, 128, 192))
    prepared = prepare(device, ROLES, case.problem)
    places, buffers = contiguous_tensors(case.problem, inputs_of(case))
    with uploaded(device, buffers) as held:
        call = {**held.call(places), SCRATCH: TensorArg(device.allocate(prepared.scratch_bytes))}
        for step in prepared.steps:
            step.bind((step.launch.arguments(call).pack(case.problem, device.tensor_map),))(0)
            assert device.report().counters.bank_conflicts == 0, step.launch.config


@pytest.mark.parametrize(
    ("facts", "what"),
    [
        ({"softcap": 20.0}, "softcap"),
        ({"bias": "same"}, "bias"),
        ({"sequences": 2}, "sequences"),
    ],
)
def test_what_it_does_not_compute_is_refused_by_name(facts, what):
    with pytest.raises(Unsupported, match=what):
        plan(TOGETHER, replace(problem(TOGETHER, 100, 200), **facts), sm_count=4)


@pytest.mark.gpu
@pytest.mark.skipif(not has_cuda(), reason="needs a GPU")
def test_a_hundred_repeats_give_the_same_bits_on_a_gpu():
    device = default_device("cuda")
    full_size = AttentionProblem(2, 8, 2, 4096, 4096, 128, operation="backward")
    inputs = random_inputs(full_size)
    first = run_arrays(device, WIDE, full_size, inputs)
    for _ in range(100):
        again = run_arrays(device, WIDE, full_size, inputs)
        assert all((first[name] == again[name]).all() for name in first)


BASE = TOGETHER.blocks
OTHERS = [
    (BASE, {"dtype": DType.FP16}),
    (BASE, {"d_head": 128}),
    (BASE, {"B_c": 128}),
    (BASE, {"B_r": 128}),
    (replace(BASE, B_c=128, B_r=128), {"n_warps": 8}),
    (BASE, {"roles": True}),
    (BASE, {"buffered": False}),
    (replace(BASE, turn=1, rounds=False), {"unordered": True}),
    (BASE, {"turn": 1}),
    (BASE, {"rounds": False}),
]


def test_every_field_is_tried():
    assert {name for _, other in OTHERS for name in other} == set(BASE.knobs())


@pytest.mark.parametrize(("config", "other"), OTHERS, ids=str)
def test_a_field_alone_changes_the_machine_code(config, other):
    codes = {
        machine_code(compile_kernel(one, Needs(), "sm_80").cubin)
        for one in (config, replace(config, **other))
    }
    assert len(codes) == 2
