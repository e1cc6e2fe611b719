"""What a row adds up depends on no other row: all other queries changed, the same bits."""

import numpy as np
import pytest

from flashsmith.base.dtypes import DType, to_bits
from flashsmith.kernels import get_kernel_configs, parse_config
from flashsmith.problem.attention import AttentionProblem
from flashsmith.runtime.run import run_arrays

KEPT = slice(3, 9)  # rows of two quads' halves: their warp's other rows change
HOPPER = "overlap+early_rescale+tiles_DYNAMIC+sections+o_smem"
CONFIGS = [
    f"hopper(FP16, 64, 3, 128): kv_2+q_6+{HOPPER}+stats_VOTE+lazy_8+regs_160_32",
    f"hopper(FP16, 64, 3, 128): kv_2+q_6+{HOPPER}+stats_MAX+lazy_8+regs_160_32",
    f"hopper(BF16, 64, 3, 128): kv_2+q_6+{HOPPER}+stats_BITS+lazy_8+regs_160_32",
    f"hopper(BF16, 64, 3, 128): kv_2+q_6+{HOPPER}+stats_SUM+lazy_8+regs_160_32",
    f"hopper(FP16, 64, 3, 128): kv_2+q_6+{HOPPER}+stats_SUM+lazy_8+l_mma+regs_160_32",
    "(FP16, 64, 64, 64, 4): async+eager+swizzled+load_0_2_2_tiles+opt_softmax",
    "(BF16, 128, 128, 32, 4): async+eager+swizzled+load_2_2_2_tiles+opt_softmax",
    "(FP16, 64, 64, 64, 4): async+eager+swizzled+load_0_2_2_tiles",
]


def outputs(device, config, causal):
    """The kept rows of O, first beside small and then beside very different queries."""
    problem = AttentionProblem(
        1, 3, 1, 197, 419, config.d_head, config.dtype, causal=causal, lse=True
    )
    random = np.random.default_rng(11)
    shape = {"q": (1, 197, 3), "k": (1, 419, 1), "v": (1, 419, 1)}
    numbers = {
        name: random.standard_normal((*size, config.d_head), np.float32)
        for name, size in shape.items()
    }
    numbers["q"] *= np.exp2(np.arange(197) % 7)[None, :, None, None]
    other = random.standard_normal(numbers["q"].shape, np.float32) * 40
    other[:, KEPT] = numbers["q"][:, KEPT]
    found = []
    for q in (numbers["q"], other.astype(np.float32)):
        inputs = {name: to_bits(x, config.dtype) for name, x in (numbers | {"q": q}).items()}
        # One mma after the other, as a GPU adds: bits then mean what they mean there.
        made = run_arrays(device.in_fixed_order(), config, problem, inputs)
        found.append((made["o"][:, KEPT], made["lse"][..., KEPT]))
    return found


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("text", CONFIGS)
def test_a_row_has_the_same_bits_whatever_its_neighbours_hold(text, causal, device):
    (o, lse), (o_beside_others, lse_beside_others) = outputs(device, parse_config(text), causal)
    np.testing.assert_array_equal(o, o_beside_others)
    np.testing.assert_array_equal(lse, lse_beside_others)


# A class of bits each: widths, rows of a tile, teams of one warp and of more, both ways to add up.
_QUICK = "kept_parts+quick_start+quick_end"
DECODE_CONFIGS = [
    "decode(BF16, 64, 16, 32, 4): slice_512+most_32+stages_3+ctas_2",
    f"decode(FP16, 128, 16, 16, 4): slice_512+most_32+stages_2+ctas_3+{_QUICK}",
    "decode(BF16, 128, 64, 16, 4): slice_1024+most_16+stages_4+ctas_2",
    "hopper_decode(FP16, 256, 16, 16, 2): slice_256+most_32+stages_2+ctas_2",
]
KEPT_HEADS = (0, 1, slice(2, 4))  # of one token, one head of K and V each: other rows change


def decoded(device, config):
    """The kept rows of O and LSE of three slices, beside small and then very different queries."""
    k_len = 2 * config.slice_keys + 45
    problem = AttentionProblem(
        1, 6, 2, 3, k_len, config.d_head, config.dtype, causal=True, lse=True
    )
    random = np.random.default_rng(12)
    shape = {"q": (1, 3, 6), "k": (1, k_len, 2), "v": (1, k_len, 2)}
    numbers = {
        name: random.standard_normal((*size, config.d_head), np.float32)
        for name, size in shape.items()
    }
    other = random.standard_normal(numbers["q"].shape, np.float32) * 40
    other[KEPT_HEADS] = numbers["q"][KEPT_HEADS]
    found = []
    for q in (numbers["q"], other):
        inputs = {name: to_bits(x, config.dtype) for name, x in (numbers | {"q": q}).items()}
        made = run_arrays(device.in_fixed_order(), config, problem, inputs)
        found.append((made["o"], made["lse"]))
    assert not np.array_equal(found[0][0], found[1][0])
    return [(o[KEPT_HEADS], lse[0, 2:4, 1]) for o, lse in found]


@pytest.mark.parametrize("text", DECODE_CONFIGS)
def test_a_decoded_row_has_the_same_bits_whatever_its_neighbours_hold(text, device):
    (o, lse), (o_beside_others, lse_beside_others) = decoded(device, parse_config(text))
    np.testing.assert_array_equal(o, o_beside_others)
    np.testing.assert_array_equal(lse, lse_beside_others)


@pytest.mark.gpu
@pytest.mark.parametrize("key", ["decode", "hopper-decode"])
def test_decoded_rows_are_apart_in_every_kernel_of_the_sets(key, device):
    differ = []
    for config in get_kernel_configs(key):
        first, again = decoded(device, config)
        if not all(map(np.array_equal, first, again)):
            differ.append(config.short_form())
    assert not differ


@pytest.mark.gpu
@pytest.mark.parametrize("key", ["tune", "hopper", "hopper-prog", "prog"])
def test_rows_are_apart_in_every_kernel_of_the_sets(key, device):
    differ = []
    for config in get_kernel_configs(key):
        (o, _), (other, _) = outputs(device, config, causal=config.dtype is DType.FP16)
        if not np.array_equal(o, other):
            differ.append(config.short_form())
    assert not differ
