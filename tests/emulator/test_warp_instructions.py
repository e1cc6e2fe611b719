"""Exchange between lanes: shuffles, votes, matches, reductions; and where lanes are."""

import numpy as np
import pytest
from lanes import run_lanes

from flashsmith.base.errors import EmulationError

LANE = np.arange(64, dtype=np.uint32)


@pytest.mark.parametrize(
    ("mode", "b", "c", "source"),
    [
        ("bfly", 5, 0x1F, lambda lane: lane ^ 5),
        ("up", 3, 0, lambda lane: lane - 3 if lane >= 3 else lane),
        ("down", 3, 0x1F, lambda lane: lane + 3 if lane + 3 < 32 else lane),
        ("idx", 9, 0x1F, lambda lane: 9),
        # segments of 8 lanes: c holds the mask 0x18 in bits 8 to 12
        ("down", 3, 0x181F, lambda lane: lane + 3 if lane % 8 + 3 < 8 else lane),
        ("idx", 2, 0x181F, lambda lane: lane & 24 | 2),
    ],
)
def test_shuffles_read_the_lane_that_the_isa_says(mode, b, c, source):
    body = f"shfl.sync.{mode}.b32 %d, %a0, {b}, {c}, 0xffffffff;"
    expected = [(x & 32) + source(x % 32) for x in range(64)]
    assert run_lanes(body, LANE).tolist() == expected


def test_a_shuffle_says_whether_its_source_was_in_range():
    body = "shfl.sync.up.b32 %r1|%p1, %a0, 4, 0, 0xffffffff; selp.b32 %d, 1, 0, %p1;"
    assert run_lanes(body, LANE[:32]).tolist() == [0] * 4 + [1] * 28


def test_shuffles_by_register_differ_lane_by_lane():
    body = "sub.u32 %r1, 31, %a0; shfl.sync.idx.b32 %d, %a0, %r1, 31, 0xffffffff;"
    assert run_lanes(body, LANE[:32]).tolist() == list(range(31, -1, -1))


def test_a_shuffle_from_an_inactive_lane_is_a_fault():
    body = """mov.u32 %d, 0; setp.gt.u32 %p1, %a0, 15; @%p1 bra done;
        shfl.sync.down.b32 %d, %a0, 8, 31, 0xffff; done:"""
    with pytest.raises(EmulationError, match=r"inactive lane.*PTX line \d+.*lane 8"):
        run_lanes(body, LANE[:32])


@pytest.mark.parametrize(("mode", "expected"), [("any", [1, 0]), ("all", [0, 0]), ("uni", [0, 1])])
def test_votes_are_of_one_warp(mode, expected):
    body = f"""setp.eq.u32 %p1, %a0, 7; vote.sync.{mode}.pred %p2, %p1, 0xffffffff;
        selp.b32 %d, 1, 0, %p2;"""
    assert run_lanes(body, LANE)[[0, 32]].tolist() == expected


def test_a_ballot_holds_a_bit_a_lane():
    body = "setp.lt.u32 %p1, %a0, 35; vote.sync.ballot.b32 %d, %p1, 0xffffffff;"
    assert run_lanes(body, LANE)[[0, 32]].tolist() == [0xFFFFFFFF, 0b111]


def test_match_finds_lanes_with_the_same_value():
    body = "and.b32 %r1, %a0, 3; match.any.sync.b32 %d, %r1, 0xffffffff;"
    assert run_lanes(body, LANE[:32])[:4].tolist() == [0x11111111 << k for k in range(4)]
    body = "match.all.sync.b32 %d|%p1, %a0, 0xffffffff;"
    assert run_lanes(body, LANE[:32]).tolist() == [0] * 32


def test_active_lanes_are_those_that_came_here():
    body = """mov.u32 %d, 0; setp.lt.u32 %p1, %a0, 5; @!%p1 bra done;
        activemask.b32 %d; done:"""
    assert run_lanes(body, LANE[:32]).tolist() == [31] * 5 + [0] * 27


@pytest.mark.parametrize(
    ("operation", "expected"),
    [("add.u32", 496), ("max.u32", 31), ("min.s32", 0), ("or.b32", 31), ("xor.b32", 0)],
)
def test_reductions_of_a_warp(operation, expected):
    found = run_lanes(f"redux.sync.{operation} %d, %a0, 0xffffffff;", LANE[:32])
    assert found.tolist() == [expected] * 32


def test_lanes_that_diverged_meet_again_before_a_warp_wide_instruction():
    # The branch target lies below: without meeting, each half would vote alone.
    body = """setp.lt.u32 %p1, %a0, 7; @%p1 bra far; mov.u32 %r1, 1; back:
        setp.ne.u32 %p2, %r1, 0; vote.sync.ballot.b32 %d, %p2, 0xffffffff; bra end;
        far: mov.u32 %r1, 2; bra back; end:"""
    assert run_lanes(body, LANE[:32]).tolist() == [0xFFFFFFFF] * 32


def test_lane_masks_and_numbers():
    assert run_lanes("mov.u32 %d, %lanemask_lt;", LANE[:32]).tolist() == [
        (1 << k) - 1 for k in range(32)
    ]
    assert run_lanes("mov.u32 %d, %laneid;", LANE).tolist() == [k % 32 for k in range(64)]
    assert run_lanes("mov.u32 %d, %warpid;", LANE).tolist() == [k // 32 for k in range(64)]
    assert run_lanes("mov.u32 %d, %nctaid.x;", LANE, threads=32).tolist() == [2] * 64
