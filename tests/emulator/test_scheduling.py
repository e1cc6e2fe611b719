"""Divergence, loops of different lengths, schedules and processes: results never depend on them."""

import numpy as np
import pytest
from lanes import launch, run_lanes, text

from flashsmith.base.errors import EmulationError
from flashsmith.emulator.machine import processes, scheduler
from flashsmith.emulator.machine.barriers import BarrierWait
from flashsmith.emulator.options import EmulatorOptions
from flashsmith.emulator.ordering.traits import traits_of
from flashsmith.emulator.program import load
from flashsmith.emulator.ptx.parse import parse_kernel

SCHEDULES = [EmulatorOptions(), *(EmulatorOptions(seed=s) for s in range(3)),
             EmulatorOptions(chunk_lanes=64)]  # fmt: skip
IDS = ["in order", "seed 0", "seed 1", "seed 2", "small chunks"]
LANE = np.arange(256, dtype=np.uint32)
COLLATZ = """mov.u32 %r1, %a0; mov.u32 %d, 0;
    loop: setp.le.u32 %p1, %r1, 1; @%p1 bra done; add.u32 %d, %d, 1; and.b32 %r2, %r1, 1;
    setp.eq.u32 %p2, %r2, 0; @%p2 bra even; mad.lo.u32 %r1, %r1, 3, 1; bra loop;
    even: shr.u32 %r1, %r1, 1; bra loop; done:"""


def collatz(n):
    steps = 0
    while n > 1:
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        steps += 1
    return steps


@pytest.mark.parametrize("options", SCHEDULES, ids=IDS)
def test_each_lane_runs_its_own_number_of_iterations(options):
    found = run_lanes(COLLATZ, LANE, options=options)
    assert found.tolist() == [collatz(n) for n in range(256)]


@pytest.mark.parametrize("options", SCHEDULES, ids=IDS)
def test_blocks_of_different_lengths_share_barriers_of_their_own(options):
    """Block b sums what its warps exchange b + 1 times."""
    body = """mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; mov.u32 %r3, 0; mov.u32 %r9, 0;
        mov.u32 %r4, tile; mad.lo.u32 %r5, %r1, 4, %r4; xor.b32 %r6, %r1, 32;
        mad.lo.u32 %r6, %r6, 4, %r4;
        loop: add.u32 %r7, %r1, %r3; st.shared.u32 [%r5], %r7; bar.sync 0;
        ld.shared.u32 %r8, [%r6]; add.u32 %r9, %r9, %r8; bar.sync 0;
        add.u32 %r3, %r3, 1; setp.le.u32 %p1, %r3, %r2; @%p1 bra loop;
        ld.param.u64 %rd1, [p0]; mad.lo.u32 %r10, %r2, 64, %r1; mul.wide.u32 %rd2, %r10, 4;
        add.s64 %rd1, %rd1, %rd2; st.global.u32 [%rd1], %r9;"""
    ptx = text(body, 1, shared="\t.shared .align 4 .b8 tile[256];")
    out, _ = launch(ptx, [], 4 * 64 * 5, 5, 64, options)
    expected = [sum((t ^ 32) + i for i in range(b + 1)) for b in range(5) for t in range(64)]
    assert out.view(np.uint32).tolist() == expected


@pytest.mark.parametrize("options", SCHEDULES, ids=IDS)
def test_lanes_that_leave_early_do_not_hold_up_the_rest(options):
    body = """mov.u32 %r1, %tid.x; ld.param.u64 %rd1, [p0]; mul.wide.u32 %rd2, %r1, 4;
        add.s64 %rd1, %rd1, %rd2; st.global.u32 [%rd1], %r1; setp.lt.u32 %p1, %r1, 40;
        @!%p1 exit; and.b32 %r2, %r1, 1; setp.eq.u32 %p2, %r2, 0; vote.sync.ballot.b32 %r3, %p2, -1;
        st.global.u32 [%rd1], %r3;"""
    out, _ = launch(text(body, 1), [], 256, 1, 64, options)
    found = out.view(np.uint32).tolist()
    assert found == [0x55555555] * 32 + [0x55] * 8 + list(range(40, 64))


@pytest.mark.parametrize("options", SCHEDULES, ids=IDS)
def test_a_barrier_can_reduce_what_its_threads_say(options):
    body = """mov.u32 %r1, %tid.x; mov.u32 %r9, %ctaid.x; add.u32 %r9, %r9, 5;
        setp.lt.u32 %p1, %r1, %r9; bar.red.popc.u32 %r2, 0, %p1; bar.red.or.pred %p2, 0, %p1;
        bar.red.and.pred %p3, 1, 64, %p1; selp.u32 %r3, 100, 0, %p2; selp.u32 %r4, 1000, 0, %p3;
        add.u32 %r2, %r2, %r3; add.u32 %r2, %r2, %r4; ld.param.u64 %rd1, [p0];
        mad.lo.u32 %r5, %ctaid.x, 64, %r1; mul.wide.u32 %rd2, %r5, 4; add.s64 %rd1, %rd1, %rd2;
        st.global.u32 [%rd1], %r2;"""
    out, _ = launch(text(body, 1), [], 3 * 256, 3, 64, options)
    assert out.view(np.uint32).tolist() == [105] * 64 + [106] * 64 + [107] * 64


@pytest.mark.parametrize("options", SCHEDULES, ids=IDS)
def test_who_polls_does_not_keep_others_from_polling(options):
    """Warp 0 polls first in the program, for what warp 1 writes behind a loop of its own."""
    body = """mov.u32 %r1, %tid.x; shr.u32 %r2, %r1, 5; ld.param.u64 %rd1, [p0];
        setp.eq.u32 %p1, %r2, 0; @%p1 bra A; setp.eq.u32 %p1, %r2, 1; @%p1 bra B; bra C;
        A: ld.acquire.gpu.global.u32 %r3, [%rd1]; setp.ne.u32 %p2, %r3, 2; @%p2 bra A; bra end;
        B: ld.acquire.gpu.global.u32 %r3, [%rd1+4]; setp.ne.u32 %p2, %r3, 1; @%p2 bra B;
        st.release.gpu.global.u32 [%rd1], 2; bra end;
        C: mov.u32 %r4, 0; D: add.u32 %r4, %r4, 1; ld.acquire.gpu.global.u32 %r3, [%rd1+8];
        setp.lt.u32 %p2, %r4, 50; @%p2 bra D; st.release.gpu.global.u32 [%rd1+4], 1;
        end: """
    out, _ = launch(text(body, 1), [], 16, 1, 96, options)
    assert out.view(np.uint32).tolist()[:2] == [2, 1]


def test_the_last_warp_may_be_partly_empty():
    body = """mov.u32 %r1, %tid.x; ld.param.u64 %rd1, [p0]; mul.wide.u32 %rd2, %r1, 4;
        add.s64 %rd1, %rd1, %rd2; bar.sync 0; activemask.b32 %r2; st.global.u32 [%rd1], %r2;"""
    out, _ = launch(text(body, 1), [], 40 * 4, 1, 40)
    assert out.view(np.uint32).tolist() == [0xFFFFFFFF] * 32 + [0xFF] * 8


def test_a_seed_means_one_schedule():
    """Two warps write one word: without checks, the schedule decides who is last."""
    body = """mov.u32 %r1, %tid.x; mov.u32 %r4, tile; st.shared.u32 [%r4], %r1; bar.sync 0;
        ld.shared.u32 %r5, [%r4]; ld.param.u64 %rd1, [p0]; st.global.u32 [%rd1], %r5;"""
    ptx = text(body, 1, shared="\t.shared .align 4 .b8 tile[4];")

    def last(seed):
        options = EmulatorOptions(seed=seed, checks=False)
        return int(launch(ptx, [], 4, 1, 128, options)[0].view(np.uint32)[0]) // 32

    first = [last(seed) for seed in range(8)]
    assert first == [last(seed) for seed in range(8)]
    assert len(set(first)) > 1


def test_spinning_warps_let_the_others_go_on():
    body = """mov.u32 %r1, %tid.x; mov.u32 %r4, flag; setp.lt.u32 %p1, %r1, 32; @%p1 bra wait;
        mov.u32 %r2, 1; st.volatile.shared.u32 [%r4], %r2; bra end;
        wait: ld.volatile.shared.u32 %r3, [%r4]; setp.ne.u32 %p2, %r3, 1; @%p2 bra wait; end:"""
    ptx = text(body, 1, shared="\t.shared .align 4 .b8 flag[4];")
    for options in (EmulatorOptions(checks=False), EmulatorOptions(seed=3, checks=False)):
        launch(ptx, [], 4, 1, 64, options)
    forever = ptx.replace("mov.u32 %r2, 1;", "mov.u32 %r2, 2;")
    with pytest.raises(EmulationError, match="livelock"):
        launch(forever, [], 4, 1, 64, EmulatorOptions(checks=False))


@pytest.mark.parametrize("seed", [None, 0])
@pytest.mark.parametrize(
    "loop",
    [
        "L: bra L;",
        "L: add.u32 %r1, %r1, 1; and.b32 %r2, %r1, 1; setp.eq.u32 %p1, %r2, 2; @!%p1 bra L;",
        "L: add.u32 %r1, %r1, %tid.x; setp.lt.u32 %p1, %r1, 9; @%p1 bra L; bra L;",
        "ld.param.u64 %rd1, [p0]; L:ld.global.u32 %r2, [%rd1]; setp.eq.b32 %p1, %r2, 0;@%p1 bra L;",
    ],
)
def test_a_loop_without_end_is_a_livelock_at_its_line(loop, seed, monkeypatch):
    monkeypatch.setattr(scheduler, "LIVELOCK_SEGMENTS", 50_000)
    ptx = text("mov.u32 %r1, 0;\n" + loop, 1)
    with pytest.raises(EmulationError, match=r"livelock: no warp can go on: .* spins at") as caught:
        launch(ptx, [], 4, 2, 64, EmulatorOptions(seed=seed))
    assert caught.value.line == 1 + ptx[: ptx.index("L:")].count("\n")


def test_of_blocks_that_all_poll_the_one_that_can_go_on_comes_up():
    """Block 0 waits for block 1, which waits further down for block 2, which takes its time."""
    body = """mov.u32 %r1, %ctaid.x; mov.u32 %r5, 0; mov.u32 %r6, 1; ld.param.u64 %rd1, [p0];
        setp.eq.u32 %p1, %r1, 1; @%p1 bra B; setp.eq.u32 %p1, %r1, 2; @%p1 bra C;
        A: ld.acquire.gpu.global.u32 %r2, [%rd1+4]; setp.eq.u32 %p2, %r2, 0; @%p2 bra A; bra end;
        B: ld.acquire.gpu.global.u32 %r2, [%rd1]; setp.eq.u32 %p2, %r2, 0; @%p2 bra B;
        st.release.gpu.global.u32 [%rd1+4], %r6; bra end;
        C: add.u32 %r5, %r5, 1; setp.lt.u32 %p2, %r5, 50; @%p2 bra C;
        st.release.gpu.global.u32 [%rd1], %r6; end:"""
    for seed in (None, 0, 1, 2):
        out, _ = launch(text(body, 1), [], 8, 3, 32, EmulatorOptions(seed=seed))
        assert out.view(np.uint32).tolist() == [1, 1]


def test_a_warp_that_polls_with_atomics_lets_the_others_go_on():
    """Warp 0 waits until warp 1, whose code lies behind, opens the lock."""
    body = """mov.u32 %r1, %tid.x; ld.param.u64 %rd1, [p0]; setp.ge.u32 %p1, %r1, 32; @%p1 bra open;
        L: atom.global.cas.b32 %r2, [%rd1], 1, 2; setp.eq.u32 %p2, %r2, 0; @%p2 bra L; bra end;
        open: atom.global.exch.b32 %r3, [%rd1], 1; end:"""
    for options in (EmulatorOptions(), EmulatorOptions(seed=1)):
        out, _ = launch(text(body, 1), [], 4, 1, 64, options)
        assert out[0] == 2
    shut = text(body.replace("[%rd1], 1; end", "[%rd1], 0; end"), 1)
    with pytest.raises(EmulationError, match="livelock"):
        launch(shut, [], 4, 1, 64)


def test_several_processes_give_what_one_gives():
    a = np.arange(8192, dtype=np.uint32)
    one = run_lanes(COLLATZ, a, threads=128, options=EmulatorOptions(processes=1))
    two = run_lanes(COLLATZ, a, threads=128, options=EmulatorOptions(processes=2, chunk_lanes=1024))
    assert one.tolist() == two.tolist()


def test_processes_are_started_for_long_work_only(monkeypatch):
    started = []
    fork = processes.multiprocessing.get_context
    monkeypatch.setattr(
        processes.multiprocessing, "get_context", lambda kind: started.append(kind) or fork(kind)
    )
    jobs = range(5)
    assert processes.run_all(lambda job: job + 1, jobs, 2, at_once=False) == [1, 2, 3, 4, 5]
    assert not started
    monkeypatch.setattr(processes, "PAYS_SECONDS", 0.0)
    assert processes.run_all(lambda job: job + 1, jobs, 2, at_once=False) == [1, 2, 3, 4, 5]
    assert started == ["fork"]


def test_faults_come_back_from_other_processes():
    body = "setp.eq.u32 %p1, %a0, 5000; @%p1 trap; mov.u32 %d, 0;"
    with pytest.raises(EmulationError, match="trap") as caught:
        run_lanes(body, np.arange(8192, dtype=np.uint32), threads=128,
                  options=EmulatorOptions(processes=2, chunk_lanes=1024))  # fmt: skip
    assert caught.value.block == (5000 // 128, 0, 0)


def test_blocks_that_talk_to_each_other_stay_in_one_process():
    quiet = parse_kernel(text("mov.u32 %r1, 1;", 0))
    loud = parse_kernel(text("ld.param.u64 %rd1, [p0]; atom.global.add.u32 %r1, [%rd1], 1;", 1))
    assert not traits_of(quiet).communicates
    assert traits_of(loud).communicates
    assert processes.process_count(False, 20, 4) == 4
    assert processes.process_count(True, 20, 4) == 1
    assert processes.process_count(False, 1, 4) == 1


def test_a_text_is_translated_once():
    ptx = text("mov.u32 %r1, 77;", 0)
    assert load(ptx) is load(ptx)


def test_the_report_counts_what_warps_executed():
    _, report = launch(text("mov.u32 %r1, 1; add.u32 %r1, %r1, 1;", 1), [], 4, 3, 64)
    assert (report.blocks, report.threads) == (3, 64)
    assert report.warp_instructions == 3 * 3 * 2  # mov, add, ret; two warps; three blocks


def test_a_warp_that_waits_is_not_asked_again_before_a_barrier_has_completed(monkeypatch):
    """One warp counts to a hundred while three wait for it: each is looked at once or twice."""
    asked = []
    ready = BarrierWait.ready
    monkeypatch.setattr(BarrierWait, "ready", lambda wait: asked.append(1) or ready(wait))
    body = """mov.u32 %r1, %tid.x; mov.u32 %r3, 0; setp.ge.u32 %p1, %r1, 32; @%p1 bra wait;
        loop: add.u32 %r3, %r3, 1; setp.lt.u32 %p2, %r3, 100; @%p2 bra loop;
        wait: bar.sync 0; ld.param.u64 %rd1, [p0]; mul.wide.u32 %rd2, %r1, 4;
        add.s64 %rd1, %rd1, %rd2; st.global.u32 [%rd1], %r3;"""
    out, _ = launch(text(body, 1), [], 512, 1, 128, EmulatorOptions(seed=0))
    assert out.view(np.uint32).tolist() == [100] * 32 + [0] * 96
    assert 0 < len(asked) <= 12
