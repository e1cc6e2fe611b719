"""The plan of a backward pass on wgmma: launches, scratch, tensor maps, order of kv blocks."""

from dataclasses import replace

import pytest

from flashsmith.base.errors import ArgumentError, Unsupported
from flashsmith.kernels import parse_config
from flashsmith.kernels.arguments import TensorArg
from flashsmith.kernels.launch import SCRATCH
from flashsmith.kernels.plans import kernels_of, plan, scratch_bytes
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.signature import BACKWARD

CONFIG = parse_config("hopper_bwd(BF16, 128): ds_3+turns+fold+early_dv+late_fences")
PROBLEM = AttentionProblem(2, 6, 3, 300, 200, 128, operation="backward")


BROAD = parse_config("hopper_bwd(BF16, 256): ds_2+dq_red")


def call():
    found = {role.name: TensorArg(16 * i, 64, 8, 16) for i, role in enumerate(BACKWARD.tensors, 1)}
    return {**found, SCRATCH: TensorArg(4096)}


def test_rows_come_first_then_kv_blocks_then_dq():
    rows, tiles, dq = plan(CONFIG, PROBLEM, sm_count=132)
    assert [launch.config.NAME for launch in (rows, tiles, dq)] == [
        "sm90_backward_rows",
        "sm90_backward_tiles",
        "sm90_backward_dq",
    ]
    assert rows.geometry.grid == (320 // 16 * 6 * 2, 1, 1)  # 5 q tiles of 64 rows, 16 a block
    assert tiles.geometry.grid == (2 * 3 * 2, 1, 1)  # 2 kv blocks of 128 keys, of KV heads
    assert dq.geometry.grid == (2 * 5 * 6 * 2, 1, 1)  # 2 pieces a q tile
    assert plan(CONFIG, PROBLEM, sm_count=7)[1].geometry.grid == (7, 1, 1)


def test_scratch_holds_statistics_sums_and_counters():
    q_tiles = 5 * 6 * 2
    expected = q_tiles * 2048 + q_tiles * 64 * 128 * 4 + 4 * (1 + 2 * q_tiles)
    launches = plan(CONFIG, PROBLEM, sm_count=1)
    assert scratch_bytes(launches) == expected
    args = launches[0].arguments(call())
    assert args.statistics == 4096
    assert args.dq_sums == 4096 + q_tiles * 2048
    assert args.counters == args.dq_sums + q_tiles * 64 * 128 * 4
    assert args.n_counters == 1 + 2 * q_tiles


def test_wide_heads_have_kv_blocks_of_64_keys_four_pieces_and_a_counter_for_each_warp():
    wide = replace(PROBLEM, d_head=200)
    rows, tiles, dq = plan(BROAD, wide, sm_count=132)
    assert rows.geometry.grid == (320 // 8 * 6 * 2, 1, 1)  # 5 q tiles of 64 rows, 8 a block
    assert tiles.geometry.grid == (4 * 3 * 2, 1, 1)  # 4 kv blocks of 64 keys, of KV heads
    assert dq.geometry.grid == (4 * 5 * 6 * 2, 1, 1)  # 4 pieces a q tile
    q_tiles = 5 * 6 * 2
    args = tiles.arguments(call())
    assert args.k_map.box == (64, 64, 1, 1)
    assert args.counters - args.dq_sums == q_tiles * 64 * 256 * 4
    assert args.n_counters == 1 + 16 * q_tiles
    assert (args.q_tiles, args.k_tiles) == (5, 4)


def test_needs_follow_from_what_each_kernel_looks_at():
    problem = replace(PROBLEM, causal=True, diagonal=0, d_head=72)
    (_, rows), (_, tiles), (_, dq) = kernels_of(CONFIG, problem)
    assert list(rows) == ["narrow_d"]
    assert list(tiles) == ["causal", "ragged_k", "narrow_d"]
    assert list(dq) == ["causal", "ragged_q", "narrow_d"]


def test_maps_have_the_boxes_of_their_tiles_and_everything_reaches_the_kernels():
    launch = plan(CONFIG, PROBLEM, sm_count=1)[1]
    args = launch.arguments(call())
    assert args.q_map.box == args.d_o_map.box == (64, 64, 1, 1)
    assert args.k_map.box == args.v_map.box == (64, 128, 1, 1)
    assert args.q_map.strides_bytes == (16, 32, 128)
    assert args.q_map.dims == (128, 300, 6, 2)
    assert (args.o, args.d_o, args.dq) == (call()["o"], call()["do"], call()["dq"])
    assert (args.dk, args.dv) == (call()["dk"], call()["dv"])
    assert (args.lse, args.dlse) == (call()["lse"].address, call()["dlse"].address)
    without = {name: arg for name, arg in call().items() if name != "dlse"}
    assert launch.arguments(without).dlse == 0


def test_strides_that_no_map_takes_are_said():
    launch = plan(CONFIG, PROBLEM, sm_count=1)[1]
    assert launch.obstacle(call()) == ""
    broadcast = {**call(), "do": TensorArg(16, 0, 0, 0)}
    assert "d_o has strides of (0, 0, 0) bytes" in launch.obstacle(broadcast)


def test_with_sections_the_same_block_of_several_heads_is_drawn_before_the_next():
    sections = replace(CONFIG, sections=True)
    long = replace(PROBLEM, q_len=8192, k_len=8192)
    for causal in (False, True):
        assert plan(sections, replace(PROBLEM, causal=causal), sm_count=4)[1].section_heads == 6
        launches = plan(sections, replace(long, causal=causal), sm_count=4)
        assert launches[1].section_heads == 2  # of 16 MB, within 40
        assert launches[1].arguments(call()).section_heads == 2


def test_without_sections_blocks_are_drawn_head_by_head():
    unordered = replace(CONFIG, unordered=True)
    for problem in (PROBLEM, replace(PROBLEM, causal=True)):
        assert plan(CONFIG, problem, sm_count=4)[1].section_heads == 1
    assert plan(unordered, PROBLEM, sm_count=4)[1].section_heads == 1
    assert plan(unordered, replace(PROBLEM, causal=True), sm_count=4)[1].section_heads == 6
    long = replace(PROBLEM, causal=True, q_len=8192, k_len=8192)
    assert plan(unordered, long, sm_count=4)[1].section_heads == 2  # of 16 MB, within 40


def test_what_it_cannot_compute_is_refused_by_name():
    with pytest.raises(ArgumentError, match=r"one launch takes .*split the batch"):
        plan(CONFIG, replace(PROBLEM, batch=2**29), sm_count=1)
    with pytest.raises(Unsupported, match="multiples of 8 up to 128"):
        plan(CONFIG, replace(PROBLEM, d_head=136), sm_count=1)
    with pytest.raises(Unsupported, match="multiples of 8 up to 256"):
        plan(BROAD, replace(PROBLEM, d_head=264), sm_count=1)
