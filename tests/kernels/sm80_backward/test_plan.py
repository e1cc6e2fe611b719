"""The plan of a backward pass: which kernels are launched, on how many blocks, with what memory."""

from dataclasses import replace

import pytest

from flashsmith.base.errors import ArgumentError
from flashsmith.kernels import parse_config
from flashsmith.kernels.arguments import TensorArg
from flashsmith.kernels.launch import SCRATCH
from flashsmith.kernels.plans import kernels_of, plan, scratch_bytes
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.signature import BACKWARD

CONFIG = parse_config("bwd(BF16, 128): dkv_64_32_4+dq_128_64_8+dkv_buffer")
PROBLEM = AttentionProblem(2, 6, 3, 300, 200, 128, operation="backward")


def test_row_statistics_come_first_then_keys_then_queries():
    delta, keys, queries = plan(CONFIG, PROBLEM, sm_count=132)
    assert delta.config.NAME == "sm80_backward_delta"
    assert keys.config.NAME == "sm80_backward_dkv"
    assert queries.config.NAME == "sm80_backward_dq"
    assert delta.geometry.grid == (384 // 16 * 6 * 2, 1, 1)  # rows padded to 384, 16 a block
    assert keys.geometry.grid == (4 * 3 * 2, 1, 1)  # of KV heads
    assert queries.geometry.grid == (3 * 6 * 2, 1, 1)
    assert keys.geometry.smem_bytes == 2 * 64 * 256 + 2 * 32 * (2 * 256 + 8)


def test_apart_there_is_a_launch_for_dv_and_one_for_dk():
    launches = plan(replace(CONFIG, apart=True), PROBLEM, sm_count=132)
    names = [launch.config.short_form() for launch in launches]
    assert names[1].endswith("of_DV+buffer")
    assert names[2].endswith("of_DK+buffer")


def test_scratch_is_eight_bytes_a_padded_row():
    assert scratch_bytes(plan(CONFIG, PROBLEM, sm_count=1)) == 2 * 6 * 384 * 8


def test_needs_follow_from_each_kernels_tiles():
    problem = replace(PROBLEM, q_len=320, causal=True, diagonal=0, d_head=72)
    (_, delta), (_, keys), (_, queries) = kernels_of(CONFIG, problem)
    assert list(delta) == ["narrow_d"]
    assert list(keys) == ["causal", "ragged_k", "narrow_d"]  # 320 rows are tiles of 32
    assert list(queries) == ["causal", "ragged_q", "ragged_k", "narrow_d"]


def test_every_tensor_of_the_signature_reaches_the_kernels():
    call = {role.name: TensorArg(16 * i, i, i, i) for i, role in enumerate(BACKWARD.tensors, 1)}
    call[SCRATCH] = TensorArg(4096)
    args = plan(CONFIG, PROBLEM, sm_count=1)[0].arguments(call)
    for name in ("q", "k", "v", "o", "dq", "dk", "dv"):
        assert getattr(args, name) == call[name]
    assert args.d_o == call["do"]
    assert (args.lse, args.dlse) == (call["lse"].address, call["dlse"].address)
    assert (args.statistics, args.padded_rows) == (4096, 384)
    del call["dlse"]
    assert plan(CONFIG, PROBLEM, sm_count=1)[0].arguments(call).dlse == 0


def test_more_tiles_than_a_launch_takes_are_refused():
    with pytest.raises(ArgumentError, match=r"one launch takes .*split the batch"):
        plan(CONFIG, replace(PROBLEM, batch=2**29), sm_count=1)
