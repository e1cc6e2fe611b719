"""The plan of a decode call: a cta a slice, memory for parts, and counters that suffice."""

from dataclasses import replace

import pytest

from flashsmith.arch import get as get_arch
from flashsmith.base.errors import ArgumentError, Unsupported
from flashsmith.kernels import parse_config
from flashsmith.kernels.arguments import TensorArg
from flashsmith.kernels.plans import plan
from flashsmith.kernels.sm80_decode.plan import slices_of
from flashsmith.problem.attention import AttentionProblem
from flashsmith.tuner.choose.choice import choose

CONFIG = parse_config("decode(BF16, 128, 16, 16, 4): slice_512+most_32+stages_3+ctas_2")
PROBLEM = AttentionProblem(3, 32, 8, 1, 8192 + 1, 128, lse=True)
CALL = {name: TensorArg(256, 8, 8, 8) for name in ("q", "k", "v", "o", "lse")}


def test_every_slice_of_every_kv_head_has_a_cta():
    (launch,) = plan(CONFIG, PROBLEM, sm_count=132)
    assert launch.geometry.grid == (3 * 8 * 17, 1, 1)
    assert launch.geometry.threads == 128
    assert launch.geometry.smem_bytes == 16 * 256 + 4 * 3 * 2 * 16 * 256 + 16
    # four rows of O of 128 floats, with maximum and sum
    assert launch.scratch_bytes == 3 * 8 * 17 * 4 * (128 + 2) * 4


@pytest.mark.parametrize("k_len", [1, 512, 1024])
def test_one_slice_needs_no_memory_and_two_are_one(k_len):
    (launch,) = plan(CONFIG, replace(PROBLEM, k_len=k_len), sm_count=132)
    assert (launch.scratch_bytes, launch.workspace_bytes) == (0, 0)
    assert launch.geometry.grid == (3 * 8, 1, 1)


@pytest.mark.parametrize(
    ("k_len", "slices"),
    [
        *((0, (1024, 1)), (1024, (1024, 1)), (1025, (512, 3)), (8192, (512, 16))),
        *((16384, (512, 32)), (16385, (1024, 17)), (32768, (1024, 32)), (32769, (2048, 17))),
        *((65536, (2048, 32)), (131072, (4096, 32)), (2**24, (2**19, 32))),
    ],
)
def test_slices_follow_from_the_length_and_are_at_most_32(k_len, slices):
    assert slices_of(CONFIG, k_len) == slices


def test_a_launch_has_ctas_for_the_lengths_that_there_may_be():
    for k_len in (1, 1024, 1025, 5000, 16384, 16385, 40000):
        asked = replace(PROBLEM, k_len=k_len, k_lengths=True)
        (launch,) = plan(CONFIG, asked, sm_count=132)
        most = max(slices_of(CONFIG, length)[1] for length in range(k_len + 1))
        assert launch.geometry.grid == (3 * 8 * most, 1, 1)
        assert launch.arguments(CALL).slices == most


def test_persistent_ctas_are_as_many_as_run_at_once():
    config = replace(CONFIG, persistent=True)
    for problem in (PROBLEM, replace(PROBLEM, k_lengths=True)):
        (launch,) = plan(config, problem, sm_count=132)
        assert launch.geometry.grid == (2 * 132, 1, 1)
    (launch,) = plan(config, replace(PROBLEM, k_lengths=True, k_len=512), sm_count=132)
    assert launch.geometry.grid == (24, 1, 1)


def test_runs_have_as_many_ctas_for_each_head_as_run_at_once_and_no_more_than_slices():
    config = replace(CONFIG, runs=True)
    for problem, ctas in ((PROBLEM, 264), (replace(PROBLEM, heads=28, kv_heads=7), 259)):
        (launch,) = plan(config, problem, sm_count=132)
        assert launch.geometry.grid == (ctas, 1, 1)
    (launch,) = plan(config, replace(PROBLEM, k_len=1537), sm_count=132)
    assert launch.geometry.grid == (3 * 8 * 4, 1, 1)
    with pytest.raises(Unsupported, match="do not look for packed sequences"):
        plan(config, PACKED, sm_count=132)


def test_a_batch_with_more_tiles_than_counters_takes_several_launches():
    problem = replace(PROBLEM, batch=1100, kv_heads=8, k_len=1536)
    launches = plan(CONFIG, problem, sm_count=132)
    assert [(one.first_batch, one.batch) for one in launches] == [(0, 512), (512, 512), (1024, 76)]
    assert [one.geometry.grid[0] for one in launches] == [12288, 12288, 1824]


def test_rows_that_counters_cannot_tell_apart_are_refused():
    with pytest.raises(ArgumentError, match=r"a sequence has 8,192 tiles.*use a forward kernel"):
        plan(CONFIG, replace(PROBLEM, q_len=4096), sm_count=132)


def test_a_tile_holds_the_rows_of_all_heads_of_a_group():
    (launch,) = plan(CONFIG, replace(PROBLEM, q_len=9), sm_count=132)  # 36 rows, 16 a tile
    arguments = launch.arguments(CALL)
    assert (arguments.q_tiles, arguments.part_rows, arguments.group) == (3, 16, 4)


@pytest.mark.parametrize(("page", "shift"), [(1, 0), (16, 4), (24, -1), (256, 8), (0, -1)])
def test_the_logarithm_of_a_page_is_passed_where_it_has_one(page, shift):
    problem = replace(PROBLEM, page=page, pages=7 if page else 0)
    (launch,) = plan(CONFIG, problem, sm_count=132)
    assert launch.arguments(CALL).page_shift == shift


def test_needs_follow_from_the_kv_block_and_not_from_the_slice():
    (launch,) = plan(CONFIG, replace(PROBLEM, k_len=528), sm_count=132)
    assert "ragged_k" not in launch.needs
    (launch,) = plan(CONFIG, replace(PROBLEM, k_len=528, k_lengths=True), sm_count=132)
    assert "ragged_k" in launch.needs


PACKED = replace(
    PROBLEM, batch=1, q_len=300, k_len=8192, sequences=9, k_lengths=True, page=16, pages=4608
)


def test_packed_sequences_are_routed_by_their_own_rows_and_nothing_else():
    few, many = plan(CONFIG, PACKED, sm_count=132)
    assert few.config == CONFIG
    assert few.geometry.grid == (9 * 8 * 16, 1, 1)  # a cta a slice of the longest there may be
    assert (many.config.B_r, many.config.persistent) == (64, True)
    assert (few.least_rows, few.most_rows, many.least_rows) == (1, 16, 17)
    assert many.most_rows >= 4 * 300
    assert [launch.arguments(CALL).outer for launch in (few, many)] == [0, 2]
    other = plan(CONFIG, replace(PACKED, sequences=50, q_len=4000), sm_count=132)
    assert [launch.config for launch in other] == [few.config, many.config]


def test_parts_of_packed_rows_take_a_tile_a_sequence_or_a_row_each_whichever_is_less():
    few, many = plan(CONFIG, PACKED, sm_count=132)
    assert few.arguments(CALL).part_rows == 9 * 16
    assert many.arguments(CALL).part_rows == 9 * 64
    parts = [8 * 16 * 9 * 16, 8 * 8 * 9 * 64]  # heads, slices, rows
    assert few.scratch_bytes == many.scratch_bytes == max(parts) * (128 + 2) * 4
    one_each = replace(PACKED, q_len=9)
    assert [
        launch.arguments(CALL).part_rows for launch in plan(CONFIG, one_each, sm_count=132)
    ] == [
        9 * 4,
        9 * 4,
    ]


def test_a_launch_takes_as_many_packed_sequences_as_have_counters():
    launches = plan(CONFIG, replace(PACKED, sequences=700, q_len=900), sm_count=132)
    assert [(one.first_batch, one.batch) for one in launches] == [(0, 512), (512, 188)] * 2
    assert [one.takes_outer for one in launches] == [False, False, False, True]


def test_packed_keys_are_left_to_forward_kernels():
    packed = replace(PACKED, k_lengths=False, page=0, pages=0)
    with pytest.raises(Unsupported, match="packed sequences on pages of keys only"):
        plan(CONFIG, packed, sm_count=132)
    assert choose(packed, "sm_80").config.NAME == "sm80_forward"


@pytest.mark.parametrize("width", [64, 128, 256])
@pytest.mark.parametrize("heads", [8, 32, 136, 512])
def test_what_packed_rows_are_computed_by_does_not_look_at_what_is_packed(width, heads):
    packed = replace(PACKED, d_head=width, heads=heads)
    every = [
        replace(packed, sequences=n, q_len=rows, k_len=keys)
        for n in (1, 300)
        for rows in (1, 77, 9000)
        for keys in (64, 131072)
    ]
    for arch in ("sm_80", "sm_86", "sm_90a"):
        configs = [choose(one, arch).config for one in every]
        assert len({config.numeric_class for config in configs}) == 1
        for config, one in zip(configs, every, strict=True):
            for launch in plan(config, one, sm_count=132):
                launch.config.require_buildable(get_arch(arch))
