"""Sums of floats: what nothing orders follows the seed, what a kernel orders never does."""

import struct
from itertools import permutations

import numpy as np
import pytest
from lanes import launch, text

from flashsmith.emulator.memory import GlobalMemory
from flashsmith.emulator.options import EmulatorOptions
from flashsmith.emulator.program import load

BLOCKS, SEEDS = 6, range(12)
RNG = np.random.default_rng(7)


def drawn():
    """Numbers of very different size, whose sum has other bits in many orders."""
    return (RNG.standard_normal(BLOCKS) * 10.0 ** RNG.integers(-2, 7, BLOCKS)).astype(np.float32)


def different_sums(numbers):
    """How many sums all orders give."""
    total = np.float32(0)
    for number in np.array([*permutations(numbers)]).T:
        total = total + number
    return len(set(total.tolist()))


# Of many, since some have the same sum in nearly every order.
NUMBERS = max((drawn() for _ in range(50)), key=different_sums)

SHARED = "\t.shared .align 128 .b8 tile[256];"
# Block b holds its number in %f1 and in tile; %rd1 the sums, %rd2 the flag.
START = """ld.param.u64 %rd1, [p1]; add.s64 %rd2, %rd1, 1024; ld.param.u64 %rd3, [p0];
    mov.u32 %r1, %ctaid.x; mul.wide.u32 %rd4, %r1, 4; add.s64 %rd3, %rd3, %rd4;
    ld.global.nc.f32 %f1, [%rd3]; mov.u32 %r2, tile; mov.u32 %r3, %tid.x;
    setp.ne.u32 %p9, %r3, 0; @%p9 bra end; st.shared.v4.f32 [%r2], {%f1, %f1, %f1, %f1};
    fence.proxy.async.shared::cta; add.u32 %r4, %r1, 1;"""
BULK = """cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%rd1], [%r2], 16;
    cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;"""
RED = "red.global.add.f32 [%rd1], %f1;"
ADDS = {
    "bulk": BULK,
    "red": RED,
    "red.v2": "red.global.add.v2.f32 [%rd1], {%f1, %f1};",
    "red.v4": "red.global.add.v4.f32 [%rd1], {%f1, %f1, %f1, %f1};",
}
ATOM = "atom.global.add.f32 %f2, [%rd1], %f1;"


def turn(order):
    """Waits until the flag says that it is this block's turn."""
    return f"P: ld.{order}.gpu.global.u32 %r5, [%rd2]; setp.ne.u32 %p1, %r5, %r1; @%p1 bra P;"


def ordered(add, *, poll="acquire", fence="", give="release"):
    return f"{turn(poll)} {add} {fence} st.{give}.gpu.global.u32 [%rd2], %r4;"


def sums(body, options=None):
    """The bits of the first sum."""
    memory = GlobalMemory()
    given, out = memory.allocate(NUMBERS.nbytes), memory.allocate(2048)
    memory.write(given, NUMBERS)
    ptx = text(START + body + " end: cp.async.bulk.wait_group.read 0;", 2, shared=SHARED)
    params = (struct.pack("<Q", given), struct.pack("<Q", out))
    load(ptx).launch((BLOCKS, 1, 1), 32, 0, params, memory, options=options)
    return memory.read(out, 4).view(np.uint32)[0]


def by_seed(body, **options):
    return {sums(body, EmulatorOptions(seed=seed, **options)) for seed in SEEDS}


def in_order():
    total = np.float32(0)
    for number in NUMBERS:
        total += number
    return total.view(np.uint32)


@pytest.mark.parametrize("add", [*ADDS.values(), ATOM], ids=[*ADDS, "atom"])
def test_sums_that_nothing_orders_follow_the_seed(add):
    assert sums(add) == in_order()
    found = by_seed(add)
    assert len(found) > 1
    assert by_seed(add) == found


@pytest.mark.parametrize("name", ADDS)
def test_sums_of_blocks_that_go_on_to_other_places_follow_the_seed(name):
    """As dQ is added to: block b begins at place b and goes round, a long step apart."""
    work = "mov.u32 %r7, 0; W{0}: add.u32 %r7, %r7, 1; setp.lt.u32 %p2, %r7, 40; @%p2 bra W{0};"
    body = "mov.u64 %rd9, %rd1;"
    for turn in range(BLOCKS):
        body += f"""add.u32 %r6, %r1, {turn}; rem.u32 %r6, %r6, {BLOCKS};
            mul.wide.u32 %rd5, %r6, 16; add.s64 %rd1, %rd9, %rd5; {ADDS[name]}"""
        body += work.format(turn)
    assert len(by_seed(body)) > 1


@pytest.mark.parametrize("late", [False, True], ids=["at once", "late landings"])
@pytest.mark.parametrize("name", [*ADDS, "atom"])
def test_sums_ordered_by_flags_have_the_same_bits_under_every_seed(name, late):
    add = ADDS.get(name, ATOM)
    fence = "fence.proxy.async;" if name == "bulk" else ""
    body = ordered(add, fence=fence)
    assert by_seed(body, delayed_landing=late) == {sums(body)} == {in_order()}


@pytest.mark.parametrize(
    "how",
    [
        {"poll": "relaxed", "give": "relaxed"},
        {"poll": "relaxed", "give": "relaxed", "fence": "fence.proxy.async;"},
        {"poll": "relaxed", "give": "relaxed", "fence": "fence.acq_rel.gpu;"},
        {"poll": "acquire", "give": "release"},  # no fence.proxy.async
        {"poll": "acquire", "give": "relaxed", "fence": "fence.proxy.async;"},
        {"poll": "relaxed", "give": "release", "fence": "fence.proxy.async;"},
    ],
    ids=lambda how: " ".join(how.values()),
)
def test_bulk_sums_with_a_fence_or_an_order_missing_follow_the_seed(how):
    assert sums(ordered(BULK, **how)) == in_order()
    assert len(by_seed(ordered(BULK, **how))) > 1


@pytest.mark.parametrize("how", [("relaxed", "relaxed"), ("acquire", "relaxed")], ids=" ".join)
def test_sums_of_threads_with_relaxed_flags_follow_the_seed(how):
    assert len(by_seed(ordered(RED, poll=how[0], give=how[1]))) > 1


def test_fences_around_relaxed_flags_order_sums():
    fences = "fence.acq_rel.gpu;"
    body = f"""{turn("relaxed")} {fences} {BULK} fence.proxy.async; {fences}
        st.relaxed.gpu.global.u32 [%rd2], %r4;"""
    assert by_seed(body) == {in_order()}


def test_a_sum_that_was_not_waited_for_is_not_ordered_by_the_flag():
    body = ordered(BULK.replace("wait_group 0", "wait_group.read 0"), fence="fence.proxy.async;")
    assert len(by_seed(body)) > 1


@pytest.mark.parametrize("seed", SEEDS)
def test_who_reads_a_sum_in_order_sees_all_that_came_before(seed):
    body = ordered(RED + "ld.global.f32 %f3, [%rd1]; mul.wide.u32 %rd5, %r1, 4;"
                   "add.s64 %rd5, %rd1, %rd5; st.global.f32 [%rd5+512], %f3;")  # fmt: skip
    memory = GlobalMemory()
    given, out = memory.allocate(NUMBERS.nbytes), memory.allocate(2048)
    memory.write(given, NUMBERS)
    params = (struct.pack("<Q", given), struct.pack("<Q", out))
    load(text(START + body + " end:", 2, shared=SHARED)).launch(
        (BLOCKS, 1, 1), 32, 0, params, memory, options=EmulatorOptions(seed=seed)
    )
    found = memory.read(out + 512, 4 * BLOCKS).view(np.float32)
    assert found.tolist() == np.add.accumulate(NUMBERS).tolist()


@pytest.mark.parametrize("barrier", ["", "bar.sync 0;"], ids=["no barrier", "barrier"])
def test_warps_of_a_block_are_ordered_by_its_barriers(barrier):
    """Warp w adds its number in round w."""
    body = "mov.u32 %r1, %tid.x; shr.u32 %r2, %r1, 5; ld.param.u64 %rd1, [p1];"
    body += "ld.param.u64 %rd3, [p0];"
    body += "mul.wide.u32 %rd4, %r2, 4; add.s64 %rd3, %rd3, %rd4; ld.global.f32 %f1, [%rd3];"
    body += "and.b32 %r3, %r1, 31; setp.ne.u32 %p1, %r3, 0;"
    for warp in range(BLOCKS):
        body += f"setp.ne.u32 %p2, %r2, {warp}; or.pred %p3, %p1, %p2; @%p3 bra no{warp};"
        body += f"red.global.add.f32 [%rd1], %f1; no{warp}: {barrier}"

    def run(seed):
        options = EmulatorOptions(seed=seed)
        return launch(text(body, 2), [NUMBERS], 4, 1, 32 * BLOCKS, options)[0].tobytes()

    found = {run(seed) for seed in SEEDS}
    assert (found == {in_order().tobytes()}) == bool(barrier)


def test_integer_sums_have_one_result():
    add = "mov.b32 %r6, %f1; red.global.add.u32 [%rd1], %r6;"
    assert len(by_seed(add)) == 1


@pytest.mark.parametrize("add", ["red.global.add.f32", "atom.global.add.f32 %f2,"])
def test_lanes_of_one_instruction_add_in_any_order_in_random_schedules(add):
    body = f"""mov.u32 %r1, %tid.x; ld.param.u64 %rd1, [p1]; ld.param.u64 %rd3, [p0];
        mul.wide.u32 %rd4, %r1, 4; add.s64 %rd3, %rd3, %rd4; ld.global.f32 %f1, [%rd3];
        {add} [%rd1], %f1;"""

    def total(seed):
        options = EmulatorOptions(seed=seed)
        return launch(text(body, 2), [NUMBERS], 4, 1, BLOCKS, options)[0].tobytes()

    assert total(None) == in_order().tobytes()
    assert len({total(seed) for seed in SEEDS}) > 1


def test_a_guarded_atomic_leaves_the_registers_of_other_lanes_alone():
    body = """mov.u32 %r1, %tid.x; ld.param.u64 %rd1, [p0]; mov.u32 %r2, 77;
        setp.lt.u32 %p1, %r1, 4; @%p1 atom.global.add.u32 %r2, [%rd1], 1;
        mul.wide.u32 %rd2, %r1, 4; add.s64 %rd2, %rd1, %rd2; st.global.u32 [%rd2+4], %r2;"""
    out, _ = launch(text(body, 1), [], 256, 1, 32)
    assert out.view(np.uint32)[1:33].tolist() == [0, 1, 2, 3] + [77] * 28
