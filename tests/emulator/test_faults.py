"""Each check finds its fault, names where it is and who else took part; right code is silent."""

import numpy as np
import pytest
from lanes import launch, text

from flashsmith.base.errors import EmulationError
from flashsmith.emulator.options import EmulatorOptions

SMEM = "\t.shared .align 16 .b8 tile[2048];"
# %r1 thread, %r2 warp, %r3 lane, %r5 this thread's word, %r6 the same word of the other warp
START = """mov.u32 %r1, %tid.x; shr.u32 %r2, %r1, 5; and.b32 %r3, %r1, 31; mov.u32 %r4, tile;
    mad.lo.u32 %r5, %r1, 4, %r4; xor.b32 %r7, %r1, 32; mad.lo.u32 %r6, %r7, 4, %r4;
    setp.eq.u32 %p1, %r2, 0; ld.param.u64 %rd1, [p0]; mul.wide.u32 %rd2, %r1, 16;
    add.s64 %rd3, %rd1, %rd2; mad.lo.u32 %r8, %r1, 16, %r4;
"""
ALL = [None, 1, 2, 3]


def run(body, seed=None, threads=64, checks=True, params=1):
    ptx = text(START + body, params, shared=SMEM)
    given = [np.arange(256, dtype=np.uint32)] * (params - 1)
    return launch(ptx, given, 1024, 1, threads, EmulatorOptions(seed=seed, checks=checks))


def refused(body, words, **options):
    with pytest.raises(EmulationError, match=words) as caught:
        run(body, **options)
    return caught.value


@pytest.mark.parametrize("seed", ALL)
def test_a_barrier_between_write_and_read_is_enough(seed):
    run("st.shared.u32 [%r5], %r1; bar.sync 0; ld.shared.u32 %r9, [%r6];", seed)


@pytest.mark.parametrize("seed", ALL)
def test_reading_another_warps_word_without_a_barrier_is_a_race(seed):
    # Both warps write first; the order of the warps decides which read finds the other's word.
    body = "st.shared.u32 [%r5], %r1; st.shared.u32 [%r5+1024], %r1; ld.shared.u32 %r9, [%r6];"
    with pytest.raises(EmulationError) as caught:
        run(body, seed)
    assert caught.value.kind in ("race", "uninitialised")
    if seed is None:
        assert caught.value.other.startswith("written by warp 1 at PTX line")
        assert (caught.value.warp, caught.value.lane, caught.value.block) == (0, 0, (0, 0, 0))


@pytest.mark.parametrize("seed", ALL)
def test_overwriting_what_another_warp_reads_is_a_race(seed):
    fault = refused(
        """st.shared.u32 [%r5], %r1; bar.sync 0; ld.shared.u32 %r9, [%r6];
        st.shared.u32 [%r5], %r9;""", "race", seed=seed,
    )  # fmt: skip
    if seed is None:
        assert "overwrites what another warp reads" in fault.message
        assert fault.other.startswith("read by warp")


@pytest.mark.parametrize("seed", ALL)
def test_two_warps_writing_one_word_is_a_race(seed):
    assert "wr" in refused("st.shared.u32 [%r4], %r1;", "race", seed=seed).message


def test_lanes_of_one_warp_need_a_warp_barrier():
    turn = "xor.b32 %r10, %r1, 1; mad.lo.u32 %r11, %r10, 4, %r4;"
    run(turn + "st.shared.u32 [%r5], %r1; bar.warp.sync -1; ld.shared.u32 %r9, [%r11];")
    fault = refused(
        turn + "st.shared.u32 [%r5], %r1; ld.shared.u32 %r9, [%r11];", r"bar\.warp\.sync"
    )
    assert fault.other.startswith("written by lane 1 of warp 0")


def test_bytes_beside_each_other_do_not_race():
    byte = "add.u32 %r11, %r1, %r4; cvt.u16.u32 %h1, %r1; st.shared.u8 [%r11], %h1;"
    run(byte + " bar.sync 0; ld.shared.u32 %r9, [%r4];")
    refused(byte + " ld.shared.u32 %r9, [%r4];", "race")


def test_shared_memory_is_uninitialised_at_the_start():
    fault = refused("ld.shared.u32 %r9, [%r5+256];", "uninitialised")
    assert fault.address == 1024 + 256
    assert fault.line > 0


def test_a_register_that_some_lane_never_wrote_is_a_fault():
    body = "setp.lt.u32 %p2, %r3, 9; @%p2 mov.u32 %r20, 1; add.u32 %r21, %r20, 1;"
    fault = refused(body, "reads register %r20, never written")
    assert fault.lane == 9
    branch = (
        "setp.lt.u32 %p2, %r3, 9; @!%p2 bra over; mov.u32 %r20, 1; over: add.u32 %r21, %r20, 1;"
    )
    assert refused(branch, "reads register %r20").lane == 9
    run("setp.lt.u32 %p2, %r3, 9; @%p2 mov.u32 %r20, 1; @%p2 add.u32 %r21, %r20, 1;")


@pytest.mark.parametrize(
    ("access", "words"),
    [
        ("ld.shared.u32 %r9, [%r5+4096];", "outside shared memory"),
        ("shl.b32 %r9, %r3, 2; st.shared.u32 [%r9], %r1;", "outside shared memory"),
        ("ld.shared.v4.u32 {%r9, %r10, %r11, %r12}, [%r4+2040];", "misaligned"),
        ("st.global.u32 [%rd1+1024], %r1;", "outside the buffer of 1,024 bytes"),
        ("st.global.u32 [%rd1+1021], %r1;", "misaligned"),
        ("ld.global.u32 %r9, [%rd1+-4];", "outside"),
        ("mov.u64 %rd9, 0; ld.global.u32 %r9, [%rd9];", "outside every buffer"),
    ],
)
def test_accesses_stay_in_bounds_and_aligned(access, words):
    assert refused(access, words).address is not None


def test_the_faulty_lane_is_named():
    fault = refused("mul.wide.u32 %rd9, %r1, 20; add.s64 %rd9, %rd1, %rd9; "
                    "st.global.u32 [%rd9], %r1;",
                    "out of bounds")  # fmt: skip
    assert (fault.warp, fault.lane) == (1, 20)  # thread 52: 52 * 20 is past 1,024


COPY = "cp.async.cg.shared.global [%r8], [%rd3], 16; cp.async.commit_group;"


@pytest.mark.parametrize("seed", ALL)
def test_reading_a_copy_in_flight_is_a_fault(seed):
    fault = refused(COPY + "ld.shared.u32 %r9, [%r8];", "in flight", seed=seed)
    assert "not waited for" in fault.other
    run(COPY + "cp.async.wait_group 0; ld.shared.u32 %r9, [%r8];", seed)


def test_waiting_for_too_few_groups_is_a_fault():
    twice = COPY + "cp.async.cg.shared.global [%r8+1024], [%rd3], 16; cp.async.commit_group;"
    run(twice + "cp.async.wait_group 1; ld.shared.u32 %r9, [%r8];")
    refused(twice + "cp.async.wait_group 1; ld.shared.u32 %r9, [%r8+1024];", "in flight")


def test_overwriting_a_copy_in_flight_is_a_fault():
    refused(COPY + "st.shared.u32 [%r8], %r1;", "overwrites shared memory that a copy")
    refused(COPY + COPY, "overwrites shared memory that a copy")


def test_another_warps_copy_needs_its_wait_and_a_barrier():
    other = "mad.lo.u32 %r11, %r7, 16, %r4;"
    run(other + COPY + "cp.async.wait_group 0; bar.sync 0; ld.shared.u32 %r9, [%r11];")
    refused(other + COPY + "cp.async.wait_group 0; ld.shared.u32 %r9, [%r11];", "race")
    refused(other + COPY + "bar.sync 0; ld.shared.u32 %r9, [%r11];", "in flight")


@pytest.mark.parametrize("seed", ALL)
def test_a_deadlock_says_who_waits_for_what(seed):
    fault = refused("@%p1 bra skip; bar.sync 3; skip:", "deadlock", seed=seed)
    assert "warp 1: waits at PTX line" in fault.message
    assert "barrier 3 (32 of 64 threads arrived)" in fault.message


def test_too_many_arrivals_are_a_fault():
    refused("bar.arrive 1, 32; bar.arrive 1, 64;", r"bad barrier|over-arrival")
    for seed in ALL:  # the third warp is one too many, or waits for a barrier that never fills
        refused("bar.sync 2, 64;", r"over-arrival|deadlock", threads=96, seed=seed)


def test_barrier_numbers_and_counts_are_checked():
    refused("bar.sync 16;", "0 to 15")
    refused("bar.sync 1, 33;", "multiple of 32")


def test_named_barriers_order_producer_and_consumer():
    body = """@%p1 bra produce; bar.sync 1, 64; ld.shared.u32 %r9, [%r6]; bra end;
        produce: st.shared.u32 [%r5], %r1; bar.arrive 1, 64; end:"""
    for seed in ALL:
        run(body, seed)
    late = body.replace("st.shared.u32 [%r5], %r1; bar.arrive 1, 64;",
                        "bar.arrive 1, 64; st.shared.u32 [%r5], %r1;")  # fmt: skip
    with pytest.raises(EmulationError, match=r"race|uninitialised"):
        run(late)


def test_a_trap_is_a_fault_of_the_lane_that_ran_into_it():
    fault = refused("setp.eq.u32 %p2, %r1, 37; @%p2 trap;", "trap")
    assert (fault.warp, fault.lane) == (1, 5)


def test_without_checks_nothing_is_refused():
    run("st.shared.u32 [%r5], %r1; ld.shared.u32 %r9, [%r6]; ld.shared.u32 %r9, [%r4+1020];",
        checks=False)  # fmt: skip
