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


def test_with_an_early_start_all_launches_but_the_first_may_begin_early():
    for early in (False, True):
        launches = plan(replace(CONFIG, early_start=early), PROBLEM, sm_count=132)
        assert [launch.geometry.is_early for launch in launches] == [False, early, early]


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
    assert (args.q_tiles, args.kv_blocks) == (5, 4)


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
    # Within 40 MB: 8 of a head of Q at a time, of a group of two where its blocks drift apart.
    for causal, heads in ((False, 5), (True, 2)):
        assert (
            plan(sections, replace(PROBLEM, causal=causal), sm_count=4)[1].order.section_heads == 6
        )
        launches = plan(sections, replace(long, causal=causal), sm_count=4)
        assert launches[1].order.section_heads == heads
        assert launches[1].arguments(call()).section_heads == heads


def test_without_sections_blocks_are_drawn_head_by_head():
    unordered = replace(CONFIG, unordered=True)
    for problem in (PROBLEM, replace(PROBLEM, causal=True)):
        assert plan(CONFIG, problem, sm_count=4)[1].order.section_heads == 1
    assert plan(unordered, PROBLEM, sm_count=4)[1].order.section_heads == 1
    assert plan(unordered, replace(PROBLEM, causal=True), sm_count=4)[1].order.section_heads == 6
    long = replace(PROBLEM, causal=True, q_len=8192, k_len=8192)
    assert plan(unordered, long, sm_count=4)[1].order.section_heads == 2  # of 16 MB, within 40


def test_what_it_cannot_compute_is_refused_by_name():
    with pytest.raises(ArgumentError, match=r"one launch takes .*split the batch"):
        plan(CONFIG, replace(PROBLEM, batch=2**29), sm_count=1)
    with pytest.raises(Unsupported, match="multiples of 8 up to 128"):
        plan(CONFIG, replace(PROBLEM, d_head=136), sm_count=1)
    with pytest.raises(Unsupported, match="multiples of 8 up to 256"):
        plan(BROAD, replace(PROBLEM, d_head=264), sm_count=1)


# 4 MB of Q, dO and dQ a head, 16 of them of one sequence.
LONG = AttentionProblem(1, 16, 16, 4096, 4096, 128, causal=True, operation="backward")
GROUPED = replace(LONG, kv_heads=2)


def order_of(problem=LONG, sm_count=132, **knobs):
    return plan(replace(CONFIG, **knobs), problem, sm_count=sm_count)[1].order


@pytest.mark.parametrize(("megabytes", "heads"), [(10, 2), (20, 4), (40, 8), (80, 16), (160, 16)])
def test_sections_of_a_given_size_leave_no_small_one_for_the_end(megabytes, heads):
    assert order_of(section_mb=megabytes).section_heads == heads
    assert order_of(section_mb=megabytes, unordered=True).section_heads == heads


@pytest.mark.parametrize(("heads", "expected"), [(12, 6), (14, 7), (17, 9), (23, 8), (3, 3)])
def test_sections_divide_the_heads_or_nearly_so(heads, expected):
    problem = replace(LONG, heads=heads, kv_heads=heads)
    assert order_of(problem, section_mb=40).section_heads == expected


def test_short_blocks_come_last_only_where_they_are_long_enough_to_matter():
    free = {"unordered": True, "short_last": True}
    assert order_of(**free).short_blocks == 17  # of 32: the root of 132 SMs * 32 blocks / 16 heads
    assert order_of(sm_count=1, **free).short_blocks == 2
    for other in (
        replace(LONG, causal=False),
        replace(LONG, q_len=2048, k_len=2048),
        replace(LONG, window_left=1000),
    ):
        assert order_of(other, **free).short_blocks == 0
    few = replace(LONG, heads=1, kv_heads=1)
    assert order_of(few, **free).short_blocks == 31
    launch = plan(replace(CONFIG, **free), LONG, sm_count=132)[1]
    assert launch.arguments(call()).short_blocks == 17


def test_a_quarter_of_the_heads_rises_whatever_the_number_of_sms():
    for sm_count in (1, 7, 132):
        order = order_of(sm_count=sm_count, rising=True, section_mb=40)
        assert (order.rising_heads, order.section_heads) == (4, 6)  # 12 fall: 6 and 6
    assert order_of(replace(LONG, causal=False), rising=True).rising_heads == 0
    assert order_of(replace(LONG, window_left=1000), rising=True).rising_heads == 0
    assert order_of(replace(LONG, heads=3, kv_heads=3), rising=True).rising_heads == 0
    launch = plan(replace(CONFIG, rising=True), LONG, sm_count=132)[1]
    assert launch.arguments(call()).rising_heads == 4


def test_no_head_rises_where_bits_may_not_follow_from_the_batch():
    assert order_of(replace(LONG, batch_invariant=True), rising=True).rising_heads == 0


@pytest.mark.parametrize(
    ("changes", "d_head", "expected"),
    [
        ({}, 128, True),
        ({"causal": False}, 128, False),
        ({"diagonal": 64}, 128, True),
        ({"diagonal": 64}, 64, False),  # q tiles of 128 rows
        ({"diagonal": 128}, 64, True),
        ({"diagonal": 32}, 128, False),
        ({"diagonal": -64}, 256, True),
        ({"kv_heads": 4}, 128, False),  # the next head of a group begins with hidden keys again
        ({"window_left": 300}, 128, False),
        ({"q_len": 4001, "k_len": 4001}, 128, True),
        ({"k_len": 4001, "diagonal": 0}, 128, False),  # keys behind the last, of a row that exists
    ],
)
def test_masks_are_looked_at_once_only_where_that_is_enough(changes, d_head, expected):
    base = {64: "ds_2+fold+masks_first", 128: "ds_3+masks_first", 256: "ds_2+dq_red+masks_first"}
    config = parse_config(f"hopper_bwd(BF16, {d_head}): {base[d_head]}")
    problem = replace(LONG, d_head=d_head, **changes)
    tiles = plan(config, problem, sm_count=4)[1].config
    assert tiles == replace(config.tiles, masks_first=expected)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"causal": False}, True),
        ({}, False),
        ({"window_left": 300}, False),
        ({"causal": False, "alibi": True}, False),
        ({"causal": False, "k_len": 4001}, True),
        ({"causal": False, "kv_heads": 4}, True),
    ],
)
def test_walks_are_staggered_only_where_every_row_sees_every_key(changes, expected):
    config = replace(CONFIG, unordered=True, staggered=True)
    tiles = plan(config, replace(LONG, **changes), sm_count=4)[1].config
    assert tiles == replace(config.tiles, staggered=expected)


@pytest.mark.parametrize(("part", "heads"), [(0, 8), (10, 2), (20, 4)])
def test_a_walk_takes_a_part_of_a_group(part, heads):
    config = replace(CONFIG, masks_first=True, part_mb=part)
    launch = plan(config, replace(GROUPED, batch=4), sm_count=132)[1]
    assert launch.order.walked_heads == heads
    assert launch.config == replace(config.tiles, masks_first=False, in_parts=heads < 8)
    args = launch.arguments(call())
    assert (args.parts, args.part_heads) == (8 // heads, heads)
    assert args.all_kv_blocks == 8 * 8 // heads * 32
    # Of dK and dV what parts have in float32, and a word that counts them for each of eight warps.
    sums, words = (8 * 32 * 128 * 128 * 2 * 4, 8 * 32 * 8) if heads < 8 else (0, 0)
    assert args.counters - args.part_sums == sums
    assert args.n_counters == 1 + 2 * 4 * 16 * 64 + words
    assert args.part_counters == args.counters + 4 * (args.n_counters - words)


@pytest.mark.parametrize(
    ("changes", "heads"),
    [
        ({"batch": 4}, 2),  # 8 MB of 10
        ({"batch": 4, "q_len": 2048, "k_len": 2048}, 2),  # 16 walks of 4 heads would be too few
        ({"batch": 8, "q_len": 2048, "k_len": 2048}, 4),
        ({"batch": 2, "q_len": 8192, "k_len": 8192}, 1),
        ({"batch": 1}, 1),
        ({"batch": 4, "batch_invariant": True}, 1),  # as if alone
        ({"batch": 4, "causal": False}, 2),
        ({"batch": 4, "window_left": 500}, 8),  # all walks have a window's few rows
        ({"batch": 4, "heads": 12}, 2),  # of groups of six
        ({"q_len": 16, "diagonal": 0}, 8),  # launch 1 has too few threads to clear their counters
    ],
)
def test_a_part_fits_l2_and_there_are_walks_enough(changes, heads):
    assert order_of(replace(GROUPED, **changes), part_mb=10).walked_heads == heads


def test_parts_of_one_group_are_not_drawn_together_where_walks_may_be_short():
    for causal, walked, together in ((True, 1, 2), (False, 2, 8)):
        order = order_of(replace(GROUPED, causal=causal), part_mb=10, section_mb=160)
        assert (order.walked_heads, order.section_heads) == (walked, together)


def test_a_part_of_one_head_hides_keys_in_first_steps_alone():
    config = replace(CONFIG, masks_first=True, part_mb=10)
    assert plan(config, GROUPED, sm_count=132)[1].config.masks_first
