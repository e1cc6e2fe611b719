"""Counters: bank conflicts, sectors, bytes, instructions and waits."""

import pytest
from lanes import launch, text

from flashsmith.emulator.options import EmulatorOptions

SMEM = "\t.shared .align 1024 .b8 tile[16384];"
FILL = """mov.u32 %r1, %tid.x; mov.u32 %r4, tile; mov.u32 %r2, 0;
    fill: mad.lo.u32 %r3, %r2, 128, %r4; mad.lo.u32 %r3, %r1, 4, %r3; st.shared.u32 [%r3], %r1;
    add.u32 %r2, %r2, 1; setp.lt.u32 %p1, %r2, 128; @%p1 bra fill; bar.sync 0;
"""


def count(body, threads=32, blocks=1, **options):
    ptx = text(body, 1, shared=SMEM)
    _, report = launch(ptx, [], 8192, blocks, threads, EmulatorOptions(counters=True, **options))
    return report.counters, ptx


def of_line(counters, ptx, words):
    line = next(n for n, t in enumerate(ptx.splitlines(), 1) if words in t)
    return counters.shared[line]


@pytest.mark.parametrize(("swizzle", "extra"), [(False, 7), (True, 0)])
def test_rows_of_256_bytes_conflict_eight_ways_unless_they_are_swizzled(swizzle, extra):
    xor = "and.b32 %r8, %r1, 7; xor.b32 %r7, %r7, %r8;" if swizzle else ""
    body = FILL + f"""and.b32 %r6, %r1, 15; shr.u32 %r7, %r1, 4; {xor} shl.b32 %r6, %r6, 8;
        shl.b32 %r7, %r7, 4; add.u32 %r6, %r6, %r7; add.u32 %r6, %r6, %r4;
        ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{%r10, %r11, %r12, %r13}}, [%r6];"""  # fmt: skip
    found = of_line(*count(body), "ldmatrix")
    assert (found.requests, found.phases, found.extra) == (1, 4, 4 * extra)


@pytest.mark.parametrize(("step", "extra"), [(4, 0), (8, 1), (128, 31), (0, 0)])
def test_words_in_one_bank_are_served_one_after_the_other(step, extra):
    body = FILL + f"mad.lo.u32 %r6, %r1, {step}, %r4;\nld.shared.u32 %r9, [%r6];"
    assert of_line(*count(body), "ld.shared").extra == extra


def test_wide_loads_take_a_phase_of_eight_lanes():
    body = FILL + "mad.lo.u32 %r6, %r1, 16, %r4;\nld.shared.v4.u32 {%r9, %r10, %r11, %r12}, [%r6];"
    found = of_line(*count(body), "ld.shared.v4")
    assert (found.phases, found.extra) == (4, 0)


@pytest.mark.parametrize(("stride", "sectors"), [(4, 4), (32, 32), (8, 8), (0, 1)])
def test_sectors_are_the_different_32_bytes_of_a_request(stride, sectors):
    body = f"""mov.u32 %r1, %tid.x; ld.param.u64 %rd1, [p0]; mul.wide.u32 %rd2, %r1, {stride};
        add.s64 %rd1, %rd1, %rd2; ld.global.u32 %r2, [%rd1];"""
    counters, _ = count(body)
    assert counters.sectors_a_request == sectors
    assert counters.bytes["global load"] == 128


def test_bytes_are_counted_by_space_and_direction():
    counters, _ = count(FILL, threads=32)
    assert counters.bytes["shared store"] == 128 * 32 * 4
    assert counters.bytes["global load"] == 0


def test_instructions_are_counted_by_class_and_warp():
    body = "add.u32 %r1, 1, 2; shl.b32 %r1, %r1, 1; mov.u32 %r2, %r1;"
    counters, _ = count(body, threads=64, blocks=3)
    assert counters.instructions["arithmetic"] == 6
    assert counters.instructions["logic"] == 6
    assert counters.instructions["control"] == 6  # ret


def test_warps_that_wait_at_a_barrier_are_counted():
    counters, _ = count("bar.sync 0;", threads=96, seed=0)
    assert counters.barrier_arrivals == 3
    assert counters.barrier_waits == 2  # the last to arrive goes straight on


def test_counts_of_all_chunks_are_added():
    whole, _ = count(FILL, blocks=4, threads=32)
    small, _ = count(FILL, blocks=4, threads=32, chunk_lanes=32)
    split, _ = count(FILL, blocks=4, threads=32, chunk_lanes=32, processes=2)
    assert whole == small == split
    assert whole.shared_phases == 4 * 128
