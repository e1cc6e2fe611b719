"""Rows and tensors that lie more than 2**32 bytes apart: offsets cut to 32 bits are noticed."""

import struct

import numpy as np
import pytest
from lanes import text

from flashsmith.base.errors import EmulationError
from flashsmith.emulator.copies.tensor_map import encode_tensor_map
from flashsmith.emulator.memory import FAR_STRIDE, GlobalMemory
from flashsmith.emulator.options import EmulatorOptions
from flashsmith.emulator.program import load

ROWS, ROW_BYTES = 7, 128
ROW = np.arange(ROWS * 32, dtype=np.uint32).reshape(ROWS, 32)
# Lane t of block b copies word t of row b: %rd1 from, %rd2 to, %rd3 the stride, %rd4 the offset
START = """mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; ld.param.u64 %rd1, [p0];
    ld.param.u64 %rd2, [p1]; ld.param.u64 %rd3, [p2]; cvt.u64.u32 %rd4, %r2;
    mul.lo.u64 %rd4, %rd4, %rd3; CUT mul.wide.u32 %rd5, %r1, 4; add.s64 %rd4, %rd4, %rd5;
    add.s64 %rd6, %rd1, %rd4; add.s64 %rd7, %rd2, %rd4;"""
PLAIN = "ld.global.u32 %r3, [%rd6]; st.global.u32 [%rd7], %r3;"
CUTS = {
    "unsigned": "cvt.u32.u64 %r9, %rd4; cvt.u64.u32 %rd4, %r9;",
    "signed": "cvt.u32.u64 %r9, %rd4; cvt.s64.s32 %rd4, %r9;",
    "elements": "shr.u64 %rd4, %rd4, 1; cvt.u32.u64 %r9, %rd4; cvt.u64.u32 %rd4, %r9;"
    "shl.b64 %rd4, %rd4, 1;",
}


def copied(body, cut="", stride=FAR_STRIDE, checks=True, shared=""):
    """The rows behind the second pointer after the kernel ran on far rows."""
    memory = GlobalMemory()
    runs = {"counts": (ROWS,), "strides_bytes": (stride,)}
    source, target = (memory.allocate_sparse(ROW_BYTES, **runs) for _ in range(2))
    for row, values in enumerate(ROW):
        memory.write(source + row * stride, values)
    params = tuple(struct.pack("<Q", value) for value in (source, target, stride))
    program = load(text(START.replace("CUT", cut) + body, 3, shared=shared))
    options = EmulatorOptions(checks=checks)
    program.launch((ROWS, 1, 1), 32, 0, params, memory, options=options)
    rows = [memory.read(target + row * stride, ROW_BYTES) for row in range(ROWS)]
    return np.stack(rows).view(np.uint32)


def test_offsets_of_64_bits_reach_far_rows():
    assert (copied(PLAIN) == ROW).all()


@pytest.mark.parametrize("checks", [True, False])
@pytest.mark.parametrize("cut", CUTS)
def test_an_offset_cut_to_32_bits_is_noticed(cut, checks):
    with pytest.raises(EmulationError, match="out of bounds"):
        copied(PLAIN, CUTS[cut], checks=checks)


@pytest.mark.parametrize("cut", CUTS)
def test_near_rows_would_not_show_it(cut):
    assert (copied(PLAIN, CUTS[cut], stride=4096) == ROW).all()


def test_the_cut_difference_of_two_tensors_is_noticed():
    body = (
        """sub.s64 %rd8, %rd2, %rd1; cvt.u32.u64 %r9, %rd8; cvt.u64.u32 %rd8, %r9;
        add.s64 %rd7, %rd6, %rd8;"""
        + PLAIN
    )
    with pytest.raises(EmulationError, match="out of bounds"):
        copied(body)


def test_copies_of_lanes_reach_far_rows():
    body = """mov.u32 %r4, tile; mad.lo.u32 %r4, %r1, 4, %r4;
        cp.async.ca.shared.global [%r4], [%rd6], 4; cp.async.commit_group; cp.async.wait_group 0;
        ld.shared.u32 %r3, [%r4]; st.global.u32 [%rd7], %r3;"""
    assert (copied(body, shared=".shared .align 16 .b8 tile[128];") == ROW).all()


def test_sums_of_lanes_reach_far_rows():
    body = "ld.global.u32 %r3, [%rd6]; red.global.add.u32 [%rd7], %r3;"
    assert (copied(body) == ROW).all()


TMA = """.version 8.3
.target sm_90a
.address_size 64
.visible .entry probe(.param .align 64 .b8 from[128], .param .align 64 .b8 to[128])
{ .reg .b64 %rd<4>; .reg .b32 %r<4>; .reg .pred %p<2>;
.shared .align 128 .b8 tile[1024]; .shared .align 8 .b8 barrier[8];
mov.b64 %rd1, from; mov.b64 %rd2, to; mov.u32 %r1, tile; mov.u32 %r2, barrier;
mbarrier.init.shared::cta.b64 [%r2], 1; fence.mbarrier_init.release.cluster;
mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 1024;
cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes
    [%r1], [%rd1, {0, 0}], [%r2];
wait: mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r2], 0; @!%p1 bra wait;
cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%rd2, {0, 0}], [%r1];
cp.async.bulk.commit_group; cp.async.bulk.wait_group 0; ret; }
"""


def test_tensor_copies_reach_far_rows():
    memory = GlobalMemory()
    runs = {"counts": (ROWS,), "strides_bytes": (FAR_STRIDE,)}
    source, target = (memory.allocate_sparse(ROW_BYTES, **runs) for _ in range(2))
    for row, values in enumerate(ROW):
        memory.write(source + row * FAR_STRIDE, values)
    maps = tuple(
        encode_tensor_map(address, 2, (64, ROWS), (FAR_STRIDE,), (64, 8), 0)
        for address in (source, target)
    )
    load(TMA).launch((1, 1, 1), 1, 0, maps, memory)
    rows = [memory.read(target + row * FAR_STRIDE, ROW_BYTES) for row in range(ROWS)]
    assert (np.stack(rows).view(np.uint32) == ROW).all()
