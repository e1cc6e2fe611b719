"""The plan of the forward kernel on mma.sync: arguments as C++ lays them out, needs, limits."""

import struct

import numpy as np
import pytest

from flashsmith.base.dtypes import DType
from flashsmith.base.errors import ArgumentError
from flashsmith.compile.compiler import compile_text
from flashsmith.compile.unit import structs
from flashsmith.kernels.arguments import TensorArg
from flashsmith.kernels.parse import parse_config
from flashsmith.kernels.plans import plan
from flashsmith.problem.attention import AttentionProblem

CONFIG = parse_config("(BF16, 64, 64, 32, 4): async+load_0_0_0_tiles")


def problem(**changes):
    shape = {"batch": 2, "heads": 6, "kv_heads": 3, "q_len": 128, "k_len": 96, "d_head": 64}
    return AttentionProblem(**{**shape, **changes}, dtype=DType.BF16)


def launch(**changes):
    (one,) = plan(CONFIG, problem(**changes), sm_count=132)
    return one


def test_the_parameter_is_the_struct_of_the_kernel():
    one = launch(causal=True, diagonal=-5, lse=True)
    call = {n: TensorArg(1000 * i, 10 * i, -i, i + 7) for i, n in enumerate("qkvo", start=1)}
    arguments = one.arguments(call | {"lse": TensorArg(99)})
    packed = arguments.pack(one.problem, None)
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
        "scale_log2": (164, "f", np.float32(64**-0.5 * np.log2(np.e))),
    }
    for offset, kind, value in fields.values():
        assert struct.unpack_from(f"<{kind}", packed, offset) == (value,)
    asserts = "".join(
        f"static_assert(__builtin_offsetof(flashsmith::ForwardArgs, {name}) == {offset});\n"
        for name, (offset, _, _) in fields.items()
    )
    source = f'{structs(type(CONFIG))}{asserts}extern "C" __global__ void none() {{}}'
    assert compile_text(source, "none", "sm_90a").cubin


def test_even_lengths_of_a_full_mask_need_nothing():
    assert launch().needs.identifier() == "plain"


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
def test_needs_say_only_what_the_problem_needs(changes, expected):
    assert launch(**changes).needs.identifier() == expected


def test_every_tile_of_every_head_is_a_block():
    one = launch(q_len=129)
    assert one.geometry.grid == (3 * 6 * 2, 1, 1)
    assert one.geometry.threads == 128
    assert one.geometry.smem_bytes == CONFIG.smem_bytes()


def test_more_tiles_than_a_grid_takes_are_refused():
    with pytest.raises(ArgumentError, match=r"tiles of 64 query rows.*split the batch"):
        launch(batch=2**26, heads=48, kv_heads=48)


def test_a_diagonal_far_outside_stays_within_32_bits():
    one = launch(causal=True, diagonal=-(2**40))
    assert one.problem.mask.diagonal == -128
