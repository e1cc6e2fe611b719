"""The forward kernel on mma.sync at its edges: masks, single rows, NaN, counts of what it does."""

from dataclasses import replace

import numpy as np
import pytest

from flashsmith.base.dtypes import DType, from_bits, to_bits
from flashsmith.check.cases import Case
from flashsmith.check.tolerance import distance, expectation
from flashsmith.check.verdict import check_case
from flashsmith.emulator.options import EmulatorOptions
from flashsmith.kernels.arguments import TensorArg
from flashsmith.kernels.parse import parse_config
from flashsmith.problem.attention import AttentionProblem
from flashsmith.runtime.devices import default_device, has_cuda
from flashsmith.runtime.emulated import EmulatedDevice
from flashsmith.runtime.run import prepare, run_arrays

PLAIN = parse_config("(BF16, 64, 64, 32, 4): load_0_0_0_tiles")
ASYNC = replace(PLAIN, async_copy=True)
BEST = parse_config(
    "(BF16, 64, 128, 64, 4): async+eager+swizzled+load_2_2_2_tiles+buffer+opt_softmax"
)
# 128 columns beside 32 rows of O do not fit the registers: S is taken in two steps.
STEPS = parse_config("(BF16, 128, 128, 128, 4): async+eager+swizzled+load_2_2_2_tiles+opt_softmax")
CONFIGS = [PLAIN, BEST, STEPS]


def problem(config, q_len, k_len, **more):
    kv_heads = more.pop("kv_heads", 3)
    return AttentionProblem(1, 3, kv_heads, q_len, k_len, config.d_head, **{"lse": True, **more})


def require_right(device, config, case_problem, name, **more):
    verdict = check_case(device, config, Case(name, case_problem, **more))
    assert verdict.ok, verdict


@pytest.mark.parametrize("config", CONFIGS, ids=str)
@pytest.mark.parametrize(("q_len", "k_len"), [(1, 1), (1, 300), (200, 1), (129, 257), (63, 31)])
def test_any_length_is_right(device, config, q_len, k_len):
    require_right(device, config, problem(config, q_len, k_len), "lengths")


@pytest.mark.parametrize("config", CONFIGS, ids=str)
@pytest.mark.parametrize("diagonal", [-150, -40, -1, 0, 17, 100, 189, 190])
def test_any_diagonal_is_right_and_rows_without_keys_are_zero(device, config, diagonal):
    causal = problem(config, 150, 190, kv_heads=1, causal=True, diagonal=diagonal)
    require_right(device, config, causal, "diagonal")


@pytest.mark.parametrize("config", [BEST, STEPS], ids=str)
@pytest.mark.parametrize("d_head", [8, 40])
def test_a_narrower_head_is_run_without_a_copy(device, config, d_head):
    narrow = replace(problem(config, 70, 200, causal=True), d_head=d_head)
    require_right(device, config, narrow, "narrow", placement="padded")


@pytest.mark.parametrize("config", [PLAIN, BEST], ids=str)
def test_growing_logits_raise_the_reference_in_every_block(device, config):
    """Keys grow along the sequence and the kernel walks it backwards, and the reverse."""
    case = problem(config, 64, 320)
    random = np.random.default_rng(5)
    growth = np.linspace(0.1, 40, 320, dtype=np.float32)[None, :, None, None]
    shape = (1, 320, 3, config.d_head)
    q = to_bits(random.standard_normal((1, 64, 3, config.d_head), np.float32), DType.BF16)
    v = to_bits(random.standard_normal(shape, np.float32), DType.BF16)
    for factor in (growth, growth[:, ::-1]):
        k = to_bits(random.standard_normal(shape, np.float32) * factor, DType.BF16)
        expected = expectation(case, {"q": q, "k": k, "v": v})["o"]
        for lse in (False, True):
            found = run_arrays(device, config, replace(case, lse=lse), {"q": q, "k": k, "v": v})
            off = distance("o", expected, from_bits(found["o"], DType.BF16))
            assert off.ok, off


@pytest.mark.parametrize("config", [PLAIN, BEST], ids=str)
@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_a_row_with_nan_or_infinite_logits_is_nan_and_no_other(device, config, number):
    case = problem(config, 70, 200)
    random = np.random.default_rng(6)
    shapes = [(1, 70, 3, config.d_head), (1, 200, 3, config.d_head), (1, 200, 3, config.d_head)]
    q, k, v = (random.standard_normal(shape, np.float32) for shape in shapes)
    k = np.abs(k)
    q[0, 33, 1, 2] = number
    bits = {n: to_bits(x, DType.BF16) for n, x in zip("qkv", (q, k, v), strict=True)}
    o = run_arrays(device, config, case, bits)["o"]
    is_nan = np.isnan(from_bits(o, DType.BF16))
    expected = np.zeros_like(is_nan)
    expected[0, 33, 1] = True
    np.testing.assert_array_equal(is_nan, expected)


def counters(config, counted_problem):
    device = EmulatedDevice(options=EmulatorOptions(counters=True))
    random = np.random.default_rng(7)
    p = counted_problem
    shapes = [(p.batch, n, p.heads, p.d_head) for n in (p.q_len, p.k_len, p.k_len)]
    arrays = [to_bits(random.standard_normal(shape, np.float32), DType.BF16) for shape in shapes]
    run_arrays(device, config, p, dict(zip("qkv", arrays, strict=True)))
    return device.report().counters


def test_swizzled_reads_have_no_bank_conflicts_and_plain_ones_do():
    even = problem(ASYNC, 64, 96, lse=False)
    swizzled = counters(replace(ASYNC, swizzled=True), even)
    plain = counters(ASYNC, even)
    assert swizzled.bank_conflicts == 0
    assert plain.bank_conflicts > plain.shared_phases


def test_the_best_configuration_has_no_bank_conflicts():
    assert counters(BEST, problem(BEST, 128, 192, lse=False)).bank_conflicts == 0


def test_rows_of_global_memory_are_read_in_whole_sectors():
    """32 lanes of 16 bytes are 16 sectors."""
    assert counters(BEST, problem(BEST, 128, 192, lse=False)).sectors_a_request == 16


@pytest.mark.gpu
@pytest.mark.skipif(not has_cuda(), reason="needs a GPU")
def test_offsets_beyond_32_bits_are_right():
    """Two batches whose elements lie 2^31 and some apart, all four tensors in one allocation."""
    device = default_device("cuda")
    case = AttentionProblem(2, 3, 3, 70, 200, BEST.d_head)
    random = np.random.default_rng(8)
    shapes = [(2, n, 3, BEST.d_head) for n in (70, 200, 200)]
    arrays = [to_bits(random.standard_normal(shape, np.float32), DType.BF16) for shape in shapes]
    expected = run_arrays(device, BEST, case, dict(zip("qkv", arrays, strict=True)))["o"]

    apart = 2**31 + 64  # elements
    room = 1 << 20  # bytes of one tensor's batch, generously
    start = device.allocate(2 * apart + 4 * room)
    args = [
        TensorArg(start + i * room, apart, 3 * BEST.d_head, BEST.d_head) for i in range(len("qkvo"))
    ]
    for arg, array in zip(args, arrays, strict=False):
        for batch in range(2):
            device.upload(arg.address + 2 * batch * apart, array[batch])
    prepare(device, BEST, case)(dict(zip("qkvo", args, strict=True)))
    for batch in range(2):
        got = device.download(args[3].address + 2 * batch * apart, expected[batch].nbytes)
        np.testing.assert_array_equal(got.view(np.uint16), expected[batch].reshape(-1))
    device.free(start)
