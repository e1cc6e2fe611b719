"""Blocks that wait for each other: as many run together as the SMs hold, the others after them."""

import struct

import numpy as np
import pytest
from lanes import text

from flashsmith.base.errors import EmulationError
from flashsmith.emulator.memory import GlobalMemory
from flashsmith.emulator.options import EmulatorOptions
from flashsmith.emulator.program import load

BIG = 120_000  # bytes of shared memory: one block an SM
SEEDS = [None, 0, 1]
# Each block counts itself, and waits until all have.
MEETING = """mov.u32 %r2, %nctaid.x; ld.param.u64 %rd1, [p0]; mov.u32 %r4, %tid.x;
    setp.ne.u32 %p1, %r4, 0; @%p1 bra end; red.release.gpu.global.add.u32 [%rd1], 1;
    wait: ld.acquire.gpu.global.u32 %r6, [%rd1]; setp.ne.u32 %p2, %r6, %r2; @%p2 bra wait;
    end:"""
# Block b waits for the flag of block b + 1, and block 0's is the last one's.
CHAIN = """mov.u32 %r1, %ctaid.x; mov.u32 %r2, %nctaid.x; ld.param.u64 %rd1, [p0];
    mul.wide.u32 %rd2, %r1, 4; add.s64 %rd2, %rd1, %rd2; mov.u32 %r4, %tid.x;
    setp.ne.u32 %p1, %r4, 0; @%p1 bra end; add.u32 %r3, %r1, 1; setp.eq.u32 %p3, %r3, %r2;
    @%p3 bra last;
    wait: ld.acquire.gpu.global.u32 %r6, [%rd2+4]; setp.eq.u32 %p2, %r6, 0; @%p2 bra wait;
    last: mov.u32 %r5, 1; st.release.gpu.global.u32 [%rd2], %r5; end:"""
# Blocks take tickets in the order they come; the ticket's place gets the block.
TICKETS = """mov.u32 %r1, %ctaid.x; ld.param.u64 %rd1, [p0]; mov.u32 %r4, %tid.x;
    setp.ne.u32 %p1, %r4, 0; @%p1 bra end; atom.global.add.u32 %r5, [%rd1], 1;
    mul.wide.u32 %rd2, %r5, 4; add.s64 %rd2, %rd1, %rd2; st.global.u32 [%rd2+4], %r1; end:"""


def run(body, blocks, sms, *, seed=None, smem=BIG, threads=64, shared="", cluster=1):
    memory = GlobalMemory()
    out = memory.allocate(4 * (blocks + 1))
    load(text(body, 1, shared=shared)).launch(
        (blocks, 1, 1), threads, smem, (struct.pack("<Q", out),), memory, sm_count=sms,
        cluster=cluster, options=EmulatorOptions(seed=seed),
    )  # fmt: skip
    return memory.read(out, 4 * (blocks + 1)).view(np.uint32).tolist()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("sms", [1, 7, 132])
def test_blocks_that_fit_wait_for_each_other(sms, seed):
    assert run(MEETING, sms, sms, seed=seed)[0] == sms
    assert run(CHAIN, sms, sms, seed=seed) == [1] * sms + [0]


@pytest.mark.parametrize("body", [MEETING, CHAIN], ids=["meeting", "chain"])
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("sms", [1, 7, 132])
def test_a_block_that_does_not_fit_is_waited_for_in_vain(sms, seed, body):
    with pytest.raises(EmulationError, match="livelock") as caught:
        run(body, sms + 1, sms, seed=seed)
    says = f"1 blocks from ({sms}, 0, 0) on have not begun: {sms} fit on {sms} SMs"
    assert says in caught.value.message
    assert caught.value.line > 0


def test_several_small_blocks_share_an_sm():
    assert run(MEETING, 2 * 7, 7, smem=100_000)[0] == 14
    assert run(MEETING, 32, 1, smem=0)[0] == 32
    with pytest.raises(EmulationError, match="32 fit on 1 SMs"):
        run(MEETING, 33, 1, smem=0)


def test_named_barriers_limit_what_fits():
    body = MEETING + " bar.sync 15;"  # 16 of the 64 barriers of an SM
    assert run(body, 4, 1, smem=0)[0] == 4
    with pytest.raises(EmulationError, match="4 fit on 1 SMs"):
        run(body, 5, 1, smem=0)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("sms", [1, 7])
def test_later_blocks_begin_in_order_as_others_end(sms, seed):
    order = run(TICKETS, 30, sms, seed=seed)[1:]
    assert sorted(order) == list(range(30))
    if sms == 1:
        assert order == list(range(30))
    # A block begins when one before it has ended: it never overtakes more than those beside it.
    assert all(abs(block - place) < sms for place, block in enumerate(order))


def test_a_later_block_finds_nothing_of_the_one_before():
    shared = "\t.shared .align 8 .b8 tile[64]; .shared .align 8 .b8 barrier[8];"
    fresh = """mov.u32 %r7, tile; ld.param.u64 %rd9, [p0]; red.global.add.u32 [%rd9], 1;
        mov.u32 %r9, 5; st.shared.u32 [%r7], %r9;"""
    assert run(fresh, 3, 1, shared=shared, threads=1, smem=0)[0] == 3
    stale = fresh.replace("mov.u32 %r9, 5;", "ld.shared.u32 %r9, [%r7];")
    with pytest.raises(EmulationError, match="uninitialised"):
        run(stale, 3, 1, shared=shared, threads=1)
    guarded = """mov.u32 %r1, %ctaid.x; mov.u32 %r7, barrier; setp.eq.u32 %p1, %r1, 0;
        @%p1 mbarrier.init.shared::cta.b64 [%r7], 1; mbarrier.arrive.shared::cta.b64 _, [%r7];"""
    with pytest.raises(EmulationError, match="mbarrier not initialised") as caught:
        run(guarded + fresh, 40, 1, shared=shared, threads=1)
    assert caught.value.block == (1, 0, 0)


@pytest.mark.parametrize("seed", SEEDS)
def test_barriers_copies_and_clocks_begin_anew_in_a_later_block(seed):
    shared = "\t.shared .align 16 .b8 tile[1024]; .shared .align 8 .b8 barrier[8];"
    body = """mov.u32 %r1, %tid.x; mov.u32 %r4, tile; mov.u32 %r7, barrier;
        mad.lo.u32 %r5, %r1, 4, %r4; xor.b32 %r6, %r1, 32; mad.lo.u32 %r6, %r6, 4, %r4;
        setp.eq.u32 %p1, %r1, 0; @%p1 mbarrier.init.shared::cta.b64 [%r7], 64;
        st.shared.u32 [%r5], %r1; bar.sync 0; bar.warp.sync -1; ld.shared.u32 %r9, [%r6];
        mbarrier.arrive.shared::cta.b64 _, [%r7];
        W: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r7], 0; @!%p2 bra W;
        st.shared.u32 [%r6], %r9; bar.sync 1, 64; ld.shared.u32 %r9, [%r5];
        ld.param.u64 %rd9, [p0]; red.global.add.u32 [%rd9], %r9;"""
    assert run(body, 9, 2, seed=seed, shared=shared)[0] == 9 * sum(range(64))


def test_clusters_begin_whole():
    order = run(TICKETS, 8, 2, cluster=2, smem=BIG)[1:]
    assert [block // 2 for block in order] == [0, 0, 1, 1, 2, 2, 3, 3]


def test_a_kernel_is_told_how_many_sms_there_are():
    body = """mov.u32 %r1, %nsmid; mov.u32 %r2, %smid; ld.param.u64 %rd1, [p0];
        st.global.u32 [%rd1], %r1; red.global.max.u32 [%rd1+4], %r2;"""
    assert run(body, 30, 7)[:2] == [7, 6]


def test_a_gpu_without_an_sm_is_refused():
    with pytest.raises(EmulationError, match="0 SMs; 1 or more are possible"):
        run(MEETING, 1, 0)
