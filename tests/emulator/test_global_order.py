"""Bulk writes to global memory: who else may touch the bytes, and after what."""

import struct

import numpy as np
import pytest
from lanes import text

from flashsmith.base.errors import EmulationError
from flashsmith.emulator.memory import GlobalMemory
from flashsmith.emulator.options import EmulatorOptions
from flashsmith.emulator.program import load

SHARED = """\t.shared .align 128 .b8 tile[256]; .shared .align 8 .b8 barrier[8];
    .reg .b64 %out; .reg .b64 %flag; .reg .b32 %smem; .reg .b32 %bar; .reg .b32 %one;"""
# Thread 0 of each warp runs; %out and %flag are global, tile holds four words of 1 + block.
START = """ld.param.u64 %out, [p0]; add.s64 %flag, %out, 1024; mov.u32 %smem, tile;
    mov.u32 %bar, barrier; mov.u32 %one, 1; mov.u32 %r1, %ctaid.x; mov.u32 %r2, %tid.x;
    shr.u32 %r3, %r2, 5; and.b32 %r4, %r2, 31; setp.ne.u32 %p9, %r4, 0; @%p9 exit;
    add.u32 %r5, %r1, 1; cvt.rn.f32.u32 %f1, %r5; setp.ne.u32 %p8, %r3, 0; @%p8 bra filled;
    st.shared.v4.f32 [%smem], {%f1, %f1, %f1, %f1};
    mbarrier.init.shared::cta.b64 [%bar], 1; fence.mbarrier_init.release.cluster;
    fence.proxy.async.shared::cta; filled:"""
COPY = """cp.async.bulk.global.shared::cta.bulk_group [%out], [%smem], 16;
    cp.async.bulk.commit_group;"""
ADD = COPY.replace("cp.async.bulk.global.shared::cta.bulk_group",
                   "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32")  # fmt: skip
WAIT = "cp.async.bulk.wait_group 0;"
WAIT_READ = "cp.async.bulk.wait_group.read 0;"
PROXY = "fence.proxy.async;"
GPU = "fence.acq_rel.gpu;"
RELEASE = "st.release.gpu.global.u32 [%flag], %one;"
RELAXED = "st.relaxed.gpu.global.u32 [%flag], %one;"


def poll(order="acquire", label="P"):
    return (f"{label}: ld.{order}.gpu.global.u32 %r6, [%flag]; setp.eq.u32 %p1, %r6, 0;"
            f"@%p1 bra {label};")  # fmt: skip


READ = "ld.global.f32 %f2, [%out];"
LOAD = """mbarrier.arrive.expect_tx.shared::cta.b64 _, [%bar], 16;
    cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%smem], [%out], 16, [%bar];
    L: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%bar], 0; @!%p2 bra L;"""
SCHEDULES = [None, 0, 1]


def run(*parts, seed=None, blocks=2, threads=32, checks=True, ordered_sums=False):
    """Block 0 runs the first part, block 1 the second, and so on; four floats come back."""
    body = START
    for block, part in enumerate(parts):
        body += f"setp.ne.u32 %p7, %r1, {block}; @%p7 bra not{block}; {part} bra end; not{block}:"
    memory = GlobalMemory()
    out = memory.allocate(2048)
    load(text(body + "end:", 1, shared=SHARED)).launch(
        (blocks, 1, 1), threads, 0, (struct.pack("<Q", out),), memory,
        options=EmulatorOptions(seed=seed, checks=checks, ordered_sums=ordered_sums),
    )  # fmt: skip
    return memory.read(out, 16).view(np.float32).tolist()


def fault(*parts, **options):
    with pytest.raises(EmulationError) as caught:
        run(*parts, **options)
    return caught.value


@pytest.mark.parametrize("seed", SCHEDULES)
@pytest.mark.parametrize(
    ("produce", "consume"),
    [
        (WAIT + RELEASE, poll() + READ),
        (WAIT + GPU + RELAXED, poll("relaxed") + GPU + READ),
        (WAIT + "membar.gl;" + RELAXED, poll("volatile").replace(".gpu", "") + "membar.gl;" + READ),
        (WAIT + "fence.sc.gpu;" + RELAXED, poll() + READ),
        (WAIT + "fence.release.gpu;" + RELAXED, poll("relaxed") + "fence.acquire.gpu;" + READ),
        (WAIT + "red.release.gpu.global.add.u32 [%flag], 1;", poll() + READ),
        (WAIT + GPU + "red.relaxed.gpu.global.add.u32 [%flag], 1;", poll() + READ),
        (WAIT + "atom.release.gpu.global.exch.b32 %r7, [%flag], 1;", poll() + READ),
        (WAIT + RELEASE, poll().replace("ld.acquire.gpu.global.u32 %r6, [%flag]",
                                        "atom.acquire.gpu.global.or.b32 %r6, [%flag], 0") + READ),
        (WAIT + PROXY + RELEASE, poll() + LOAD),
        (WAIT + "fence.proxy.async.global;" + RELEASE, poll() + LOAD),
        (WAIT + RELEASE, poll() + PROXY + LOAD),
        (WAIT + PROXY + RELEASE, poll() + ADD + WAIT),
        (WAIT + PROXY + RELEASE, poll() + COPY + WAIT),
        (WAIT + RELEASE, poll() + "st.global.f32 [%out], %f1;"),
        (WAIT + RELEASE, poll() + "red.global.add.f32 [%out], %f1;"),
    ],
)  # fmt: skip
def test_an_ordered_access_is_right(produce, consume, seed):
    run(COPY + produce, consume, seed=seed)
    run(ADD + produce, consume, seed=seed)


@pytest.mark.parametrize("seed", SCHEDULES)
@pytest.mark.parametrize(
    ("produce", "consume", "kind"),
    [
        (WAIT + RELAXED, poll() + READ, "race"),
        (WAIT + RELEASE, poll("relaxed") + READ, "race"),
        (WAIT + GPU + RELAXED, poll("relaxed") + READ, "race"),
        (WAIT + RELAXED + GPU, poll() + READ, "race"),
        (WAIT + "fence.acq_rel.cta;" + RELAXED, poll() + READ, "race"),
        (WAIT + "fence.acquire.gpu;" + RELAXED, poll() + READ, "race"),
        (WAIT + "st.release.cta.global.u32 [%flag], %one;", poll() + READ, "race"),
        (WAIT + RELEASE, poll().replace(".gpu", ".cta") + READ, "race"),
        (WAIT + RELEASE, poll("relaxed") + "red.acq_rel.gpu.global.add.u32 [%flag], 1;" + READ,
         "race"),
        (WAIT + PROXY + RELAXED, poll("relaxed") + READ, "race"),
        (WAIT_READ + RELEASE, poll() + READ, "in flight"),
        (WAIT + RELAXED, poll() + LOAD, "race"),
        (WAIT + RELEASE, poll() + LOAD, "missing proxy fence"),
        (WAIT + "fence.proxy.async.shared::cta;" + RELEASE, poll() + LOAD, "missing proxy fence"),
        (PROXY + WAIT + RELEASE, poll() + LOAD, "missing proxy fence"),
        (WAIT + RELEASE, poll() + COPY + WAIT, "missing proxy fence"),
        (WAIT + RELAXED, poll() + "st.global.f32 [%out], %f1;", "race"),
        (WAIT + RELAXED, poll() + "red.global.add.f32 [%out], %f1;", "race"),
    ],
)  # fmt: skip
def test_an_access_that_nothing_orders_is_a_fault(produce, consume, kind, seed):
    for write in (COPY, ADD):
        assert fault(write + produce, consume, seed=seed).kind == kind


@pytest.mark.parametrize("seed", SCHEDULES)
@pytest.mark.parametrize(
    ("produce", "kind"),
    [
        (WAIT + RELAXED, "race"),
        (WAIT + PROXY + RELAXED, "race"),
        (WAIT + RELEASE, "missing proxy fence"),
    ],
)
def test_a_sum_on_top_of_a_copy_needs_both_fences(produce, kind, seed):
    found = fault(COPY + produce, poll() + ADD + WAIT, seed=seed)
    assert found.kind == kind
    assert found.block == (1, 0, 0)
    assert "of block (0, 0, 0) warp 0" in found.other


def test_the_fault_names_both_instructions():
    found = fault(COPY + WAIT + RELAXED, poll() + READ)
    assert "no release and acquire order its wait_group before this" in found.message
    assert found.other.startswith("the copy at PTX line")
    assert found.line > 0


@pytest.mark.parametrize("seed", SCHEDULES)
def test_sums_need_no_order_among_themselves(seed):
    assert run(ADD + WAIT, ADD + WAIT, ADD + WAIT, seed=seed, blocks=3) == [6.0] * 4


@pytest.mark.parametrize("seed", SCHEDULES)
@pytest.mark.parametrize(
    ("produce", "kind"),
    [(WAIT + PROXY + RELAXED, "race"), (WAIT + RELEASE, "missing proxy fence")],
)
def test_where_an_order_of_sums_is_asked_for_each_must_know_the_one_before(produce, kind, seed):
    second = poll() + ADD + WAIT
    ordered = ADD + WAIT + PROXY + RELEASE
    assert run(ordered, second, seed=seed, ordered_sums=True) == [3.0] * 4
    assert run(ADD + produce, second, seed=seed) == [3.0] * 4
    assert fault(ADD + produce, second, seed=seed, ordered_sums=True).kind == kind


def test_who_reads_a_sum_knows_all_that_added():
    second = RELEASE.replace("[%flag]", "[%flag+4]")
    both = poll() + poll(label="Q").replace("[%flag]", "[%flag+4]") + READ
    parts = (ADD + WAIT + RELEASE, ADD + WAIT + second)
    run(*parts, both, blocks=3)
    late = poll(label="Q").replace("acquire", "relaxed").replace("[%flag]", "[%flag+4]")
    assert fault(*parts, poll() + late + READ, blocks=3).kind == "race"
    assert fault(*parts, late + poll() + READ, blocks=3).kind == "race"


@pytest.mark.parametrize("seed", SCHEDULES)
def test_an_atomic_hands_on_what_was_released_before_it_and_a_store_does_not(seed):
    """Block 1 raises a flag that block 0 released; block 2 acquires the last value only."""
    raised = poll("relaxed", "Q").replace("setp.eq.u32 %p1, %r6, 0", "setp.ne.u32 %p1, %r6, 2")
    read = raised + "ld.acquire.gpu.global.u32 %r6, [%flag];" + READ
    first = COPY + WAIT + RELEASE
    count = poll("relaxed") + "red.relaxed.gpu.global.add.u32 [%flag], 1;"
    run(first, count, read, blocks=3, seed=seed)
    store = poll("relaxed") + "mov.u32 %r7, 2; st.relaxed.gpu.global.u32 [%flag], %r7;"
    assert fault(first, store, read, blocks=3, seed=seed).kind == "race"


@pytest.mark.parametrize("seed", SCHEDULES)
def test_warps_of_one_block_need_a_barrier_and_no_fence(seed):
    first = "setp.ne.u32 %p3, %r3, 0; @%p3 bra second;"
    meet = "barrier.sync 0, 64;"
    for use in (READ, LOAD, ADD + WAIT):
        run(f"{first} {ADD + WAIT + meet} bra end; second: {meet + use}",
            blocks=1, threads=64, seed=seed)  # fmt: skip
    for use in (READ, LOAD):
        early = f"{first} {ADD + meet + WAIT} bra end; second: {meet + use}"
        assert fault(early, blocks=1, threads=64, seed=seed).kind in ("in flight", "race")


@pytest.mark.parametrize("seed", SCHEDULES)
def test_another_warp_may_release_what_a_barrier_told_it(seed):
    parts = "setp.ne.u32 %p3, %r3, 0; @%p3 bra second;"
    meet = "barrier.sync 0, 64;"
    produce = f"{parts} {COPY + WAIT + meet} bra end; second: {meet + RELEASE}"
    consume = f"{parts.replace('second', 'end')} {poll() + READ}"
    run(produce, consume, threads=64, seed=seed)


def test_a_fence_under_a_guard_is_one_of_the_warps_that_it_lets_through():
    """Warp 0 copies and releases; the fence is run by the warp that %p4 names."""
    body = f"""setp.ne.u32 %p3, %r3, 0; setp.eq.u32 %p4, %r3, WHO; @%p3 bra met; {COPY + WAIT}
        met: @%p4 FENCE @%p3 bra end;"""
    consume = "setp.ne.u32 %p3, %r3, 0; @%p3 bra end;" + poll()
    for fence, give, use, kind in (
        (GPU, RELAXED, READ, "race"),
        (PROXY, RELEASE, LOAD, "missing proxy fence"),
    ):
        produce = body.replace("FENCE", fence) + give
        run(produce.replace("WHO", "0"), consume + use, threads=64)
        assert fault(produce.replace("WHO", "1"), consume + use, threads=64).kind == kind


def test_ordinary_stores_end_the_watch():
    run(COPY + WAIT + "st.global.v4.f32 [%out], {%f1, %f1, %f1, %f1};" + RELAXED,
        poll("relaxed") + READ)  # fmt: skip


def test_without_checks_nothing_is_watched():
    run(COPY + WAIT + RELAXED, poll("relaxed") + READ, checks=False)
