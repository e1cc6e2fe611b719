"""The plan of a decode call: a CTA a slice, memory for parts, and counters that suffice."""

from dataclasses import replace

import pytest

from flashsmith.base.errors import ArgumentError
from flashsmith.kernels import parse_config
from flashsmith.kernels.arguments import TensorArg
from flashsmith.kernels.plans import plan
from flashsmith.kernels.sm80_decode.plan import slices_of
from flashsmith.problem.attention import AttentionProblem

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
