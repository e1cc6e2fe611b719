"""bar.warp.sync: waits for the lanes of its mask, orders them and no others, refuses the rest."""

import numpy as np
import pytest
from lanes import launch, text

from flashsmith.base.errors import EmulationError
from flashsmith.emulator.options import EmulatorOptions

SMEM = "\t.shared .align 16 .b8 tile[256];"
# %r1 lane, %r5 its word, %r6 the word of its neighbour, %r7 of the lane 16 away
START = """mov.u32 %r1, %tid.x; mov.u32 %r4, tile; mad.lo.u32 %r5, %r1, 4, %r4;
    xor.b32 %r6, %r1, 1; mad.lo.u32 %r6, %r6, 4, %r4; xor.b32 %r7, %r1, 16;
    mad.lo.u32 %r7, %r7, 4, %r4; setp.lt.u32 %p1, %r1, 16; setp.lt.u32 %p2, %r1, 8;
"""
STORE = """ld.param.u64 %rd1, [p0]; mul.wide.u32 %rd2, %r1, 4; add.s64 %rd1, %rd1, %rd2;
    st.global.u32 [%rd1], %r9;"""
OWN_HALF = "selp.b32 %r8, 0x0000ffff, 0xffff0000, %p1;"
SCHEDULES = [None, 0, 1, 2]


def run(body, seed=None, threads=32, checks=True):
    ptx = text(START + body, 1, shared=SMEM)
    out, _ = launch(ptx, [], 128, 1, threads, EmulatorOptions(seed=seed, checks=checks))
    return out.view(np.uint32).tolist()


def refused(body, words, **options):
    with pytest.raises(EmulationError, match=words) as caught:
        run(body, **options)
    return caught.value


@pytest.mark.parametrize("seed", SCHEDULES)
def test_lanes_of_one_mask_see_each_others_stores(seed):
    body = f"""{OWN_HALF} st.shared.u32 [%r5], %r1; bar.warp.sync %r8;
        ld.shared.u32 %r9, [%r6]; {STORE}"""
    assert run(body, seed) == [lane ^ 1 for lane in range(32)]


@pytest.mark.parametrize("seed", SCHEDULES)
def test_lanes_of_another_mask_are_not_ordered(seed):
    body = f"{OWN_HALF} st.shared.u32 [%r5], %r1; bar.warp.sync %r8; ld.shared.u32 %r9, [%r7];"
    fault = refused(body, r"bar\.warp\.sync between them|nothing has written", seed=seed)
    assert seed is not None or fault.other.startswith("written by lane 16 of warp 0")


def test_what_a_lane_learnt_in_one_group_it_hands_on_in_the_next():
    # Lanes 0 and 1 meet, then 1 and 2: lane 2 knows what lane 0 did.
    body = """st.shared.u32 [%r5], %r1; setp.lt.u32 %p3, %r1, 2; @%p3 bar.warp.sync 3;
        setp.ge.u32 %p4, %r1, 1; setp.lt.u32 %p5, %r1, 3; and.pred %p6, %p4, %p5;
        @%p6 bar.warp.sync 6; setp.eq.u32 %p7, %r1, 2; @%p7 ld.shared.u32 %r9, [%r4];"""
    run(body)
    refused(body.replace("@%p3 bar.warp.sync 3;", ""), r"with no bar\.warp\.sync")


@pytest.mark.parametrize("seed", SCHEDULES)
def test_lanes_at_two_places_with_one_mask_meet(seed):
    body = f"""@%p1 bra low; st.shared.u32 [%r5], %r1; bar.warp.sync -1; bra done;
        low: bar.warp.sync -1; ld.shared.u32 %r9, [%r7];
        done: mov.u32 %r9, 7; @%p1 ld.shared.u32 %r9, [%r7]; {STORE}"""
    assert run(body, seed) == [*range(16, 32), *[7] * 16]


@pytest.mark.parametrize("seed", SCHEDULES)
def test_a_guarded_barrier_holds_up_the_guarded_lanes_only(seed):
    body = f"""mov.u32 %r9, 5; @%p1 bar.warp.sync 0xffff; @!%p1 bra far; mov.u32 %r9, 6;
        far: {STORE}"""
    assert run(body, seed) == [6] * 16 + [5] * 16


def test_a_lane_that_its_own_mask_does_not_name_is_a_fault():
    fault = refused("bar.warp.sync 0xffff;", "bad member mask: mask 0xffff does not name this lane")
    assert (fault.lane, fault.line > 0) == (16, True)


@pytest.mark.parametrize("seed", SCHEDULES)
def test_lanes_that_name_each_other_with_different_masks_are_a_fault(seed):
    body = "selp.b32 %r8, 0xffffff, -1, %p1; bar.warp.sync %r8;"
    assert "which waits with mask" in refused(body, "bad member mask", seed=seed).message


def test_a_lane_that_never_comes_is_a_deadlock_that_names_it():
    # Lanes 16 to 31 wait for another warp that does not exist, the others for them.
    fault = refused("@%p1 bra low; barrier.sync 1, 32; bar.warp.sync 0xffff0000; barrier.sync 1;"
                    "low: bar.warp.sync -1;", "deadlock")  # fmt: skip
    assert "for lanes [16, 17, 18," in fault.message
    assert "with mask 0xffffffff" in fault.message


@pytest.mark.parametrize("seed", SCHEDULES)
def test_a_mask_that_names_a_lane_that_has_ended_is_a_fault(seed):
    body = "@%p2 exit; bar.warp.sync -1;"
    fault = refused(body, "bad member mask: (mask 0xffffffff names this lane|this lane ends)",
                    seed=seed)  # fmt: skip
    assert fault.lane == 0
    run("@%p2 exit; bar.warp.sync 0xffffff00;", seed)


def test_lanes_that_never_were_are_not_waited_for():
    assert run("bar.warp.sync -1; mov.u32 %r9, 3;" + STORE, threads=20) == [3] * 20 + [0] * 12


def test_without_checks_a_bad_mask_is_not_refused():
    run("bar.warp.sync 0xffff;", checks=False)
