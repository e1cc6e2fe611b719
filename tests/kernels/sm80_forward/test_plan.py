"""The launch plan of the mma.sync family: arguments as C++ lays them out, traits, limits."""

import struct

import numpy as np
import pytest

from flashsmith.base.dtypes import DType
from flashsmith.base.errors import ArgumentError
from flashsmith.compile.compiler import compile_text
from flashsmith.kernels.launch import ForwardCall, TensorArg
from flashsmith.kernels.parse import parse_config
from flashsmith.kernels.sm80_forward.plan import plan_mma
from flashsmith.problem.attention import AttentionProblem

CONFIG = parse_config("(BF16, 64, 64, 32, 4): async+load_0_0_0_tiles")


def problem(**changes):
    shape = {"batch": 2, "heads": 6, "kv_heads": 3, "q_len": 128, "k_len": 96, "d_head": 64}
    return AttentionProblem(**{**shape, **changes}, dtype=DType.BF16)


def traits(**changes):
    return plan_mma(CONFIG, problem(**changes), False, 132).traits


def test_the_parameter_is_the_struct_of_the_kernel():
    plan = plan_mma(CONFIG, problem(causal=True, diagonal=-5), True, 132)
    tensors = [TensorArg(1000 * i, 10 * i, -i, i + 7) for i in range(1, 5)]
    (packed,) = plan.params(None, ForwardCall(*tensors, lse=99))
    fields = {  # of ForwardArgs: offset, kind, what the plan was given
        "q.address": (0, "Q", 1000),
        "k.batch_stride": (40, "q", 20),
        "v.seq_stride": (80, "q", -3),
        "o.head_stride": (120, "q", 11),
        "lse": (128, "Q", 99),
        "batch": (136, "i", 2),
        "heads": (140, "i", 6),
        "kv_heads": (144, "i", 3),
        "q_len": (148, "i", 128),
        "k_len": (152, "i", 96),
        "d_head": (156, "i", 64),
        "diagonal": (160, "i", -5),
        "scale_log2": (164, "f", np.float32(plan.scale_log2)),
    }
    for offset, kind, value in fields.values():
        assert struct.unpack_from(f"<{kind}", packed, offset) == (value,)
    asserts = "".join(
        f"static_assert(__builtin_offsetof(flashsmith::ForwardArgs, {name}) == {offset});\n"
        for name, (offset, _, _) in fields.items()
    )
    source = f'#include "flashsmith/sm80/args.cuh"\n{asserts}extern "C" __global__ void none() {{}}'
    assert compile_text(source, "none", "sm_90a").cubin


def test_even_lengths_of_a_full_mask_need_no_traits():
    assert traits().identifier() == "plain"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"q_len": 100}, "ragged_q"),
        ({"k_len": 97}, "ragged_k"),
        ({"d_head": 56}, "narrow_d"),
        ({"causal": True}, "causal"),
        ({"causal": True, "q_len": 1, "k_len": 96}, "ragged_q"),
        ({"causal": True, "diagonal": 95}, "plain"),
        ({"causal": True, "diagonal": 94}, "causal"),
    ],
)
def test_traits_say_only_what_the_problem_needs(changes, expected):
    assert traits(**changes).identifier() == expected


def test_every_tile_of_every_head_is_a_block():
    plan = plan_mma(CONFIG, problem(q_len=129), False, 132)
    assert plan.geometry.grid == (3 * 6 * 2, 1, 1)
    assert plan.geometry.threads == 128
    assert plan.geometry.smem_bytes == CONFIG.smem_bytes()


def test_more_tiles_than_a_grid_takes_are_refused():
    with pytest.raises(ArgumentError, match=r"tiles of 64 query rows.*split the batch"):
        plan_mma(CONFIG, problem(batch=2**26, heads=48, kv_heads=48), False, 132)


def test_a_diagonal_far_outside_stays_within_32_bits():
    plan = plan_mma(CONFIG, problem(causal=True, diagonal=-(2**40)), False, 132)
    assert plan.numbers[-1] == -128
