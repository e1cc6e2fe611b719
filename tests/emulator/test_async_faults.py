"""What the emulator says of broken Hopper kernels: who, where, which barrier, who else."""

from __future__ import annotations

import re

import pytest
from hopper_kernels import AttentionLike, ClusterPair, kernel_ptx
from lanes import launch, text

from flashsmith.base.errors import EmulationError
from flashsmith.emulator.options import EmulatorOptions

FAULTS = [
    ("no arrivals at an empty barrier", r"mbarrier\.arrive\.shared::cta\.b64 _, [^;]*;", "",
     r"deadlock: no warp can go on: .*warp 0: wait for parity 0 of mbarrier 0x\w+, which is in "
     r"phase 0 \(parity 0\) and lacks 8 of 8 arrivals and 0 bytes"),
    ("too many bytes expected", r"(expect_tx[^;]*\], )%r\d+;", r"\g<1>16400;",
     r"deadlock: .*warp 4.*wait for parity 0 of mbarrier .* lacks 0 of 2 arrivals and 16 bytes"),
    ("a wait for a full barrier skipped",
     r"mbarrier\.try_wait\.parity\.shared::cta\.b64 p, \[%r41\][^;]*;", "setp.eq.u32 p, 0, 0;",
     r"race: reads what nothing orders before this instruction in `wgmma.*"
     r"Other party: written by an asynchronous copy at PTX line \d+"),
    ("stores not published", r"fence\.proxy\.async[^;]*;", "",
     r"missing proxy fence: reads ordinary writes that no fence\.proxy\.async has published in "
     r"`.*cp\.async\.bulk\.tensor.*PTX line \d+, block \(0, 0, 0\), warp \d+.*"
     r"Other party: written by warp \d+ at PTX line \d+"),
    ("a bulk store not waited for", r"cp\.async\.bulk\.wait_group 0;", "",
     r"bulk store: the thread ends, but no wait_group says that its bulk store was read"),
    ("registers not given back", r"setmaxnreg\.dec[^;]*;", "",
     r"deadlock: .*setmaxnreg\.inc 240 needs 72 registers a thread more, the block's pool has"),
    ("an odd destination", r"(shared::cluster\.global[^\[]*\[%r\d+)\]", r"\1+64]",
     r"misaligned: the shared address of this copy is a multiple of 128"),
    ("a destination too high", r"(shared::cluster\.global[^\[]*\[%r\d+)\]", r"\1+98304]",
     r"out of bounds: 8192 bytes outside shared memory"),
    ("an odd coordinate", r"(shared::cluster\.global[^{]*\{)%r\d+", r"\g<1>3",
     r"misaligned: innermost coordinate 3 is not a multiple of 16 bytes"),
    ("a store before the tensor", r"(tensor\.2d\.global[^{]*\{)%r\d+", r"\g<1>-8",
     r"out of bounds: a store begins at coordinates \[-8, 0\], before the tensor"),
    ("no tensor map", r"(mov\.b64 \t%rd\d+, attention_like_param_)0;", r"\g<1>4;",
     r"tensor map: no tensor map lies at this address"),
    ("a wrong rank", r"tensor\.2d(\.shared[^{]*)\{(%r\d+), (%r\d+)\}", r"tensor.3d\1{\2, \3, \3}",
     r"tensor map: 3 coordinates for a map of rank 2"),
    ("a descriptor beyond shared memory", r"(or\.b64[^;]*, )4611686293305360384;",
     rf"\g<1>{1 << 62 | 0x3FFF << 32 | 1 << 16};",
     r"descriptor reaches 0x\w+ to 0x\w+, shared memory ends at"),
    ("accumulators read too early", r"wgmma\.wait_group[^;]*;", "",
     r"accumulator not waited for: %f\d+ is read, but no wgmma\.wait_group has ended"),
    ("arrivals of every lane",
     r"@%p\d+ bra[^;]*;(\s+add\.s32[^;]*;\s+//[^\n]*\s+mbarrier\.arrive\.shared)", r"\1",
     r"mbarrier over-arrival: \d+ more arrivals than the phase waits for \(count 8\)"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("what", "pattern", "replacement", "says"), FAULTS, ids=lambda x: str(x)[:40]
)
def test_a_fault_names_its_place_and_the_other_party(what, pattern, replacement, says):
    kernel = AttentionLike()
    changed, count = re.subn(pattern, replacement, kernel_ptx(kernel.name), count=1)
    assert count == 1, what
    with pytest.raises(EmulationError, match=says):
        kernel.run(changed, EmulatorOptions())


def test_a_block_that_ends_before_its_neighbour_is_done_is_a_fault():
    kernel = ClusterPair()
    text = kernel_ptx(kernel.name)
    last = text.rindex("barrier.cluster.wait")
    changed = text[:last] + text[text.index(";", last) + 1 :]
    with pytest.raises(EmulationError, match="block of a cluster ended too early"):
        kernel.run(changed, EmulatorOptions())


def test_without_checks_a_race_is_not_reported():
    kernel = AttentionLike()
    changed = re.sub(r"fence\.proxy\.async[^;]*;", "", kernel_ptx(kernel.name))
    assert kernel.is_right(kernel.run(changed, EmulatorOptions(checks=False)))


OVERWRITE = """mov.u32 %r1, %tid.x; setp.ne.u32 %p1, %r1, 0; @%p1 bra end; mov.u32 %r2, tile;
    ld.param.u64 %rd1, [p0]; st.shared.v4.u32 [%r2], {%r1, %r1, %r1, %r1};
    fence.proxy.async.shared::cta;
    cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r2], 16; cp.async.bulk.commit_group;
    WAIT st.shared.u32 [%r2+4], %r1; cp.async.bulk.wait_group 0; end:"""


@pytest.mark.parametrize("threads", [32, 64])
def test_a_warp_may_not_overwrite_what_its_own_bulk_store_still_reads(threads):
    def run(wait: str) -> None:
        body = OVERWRITE.replace("WAIT", wait)
        launch(text(body, 1, shared="\t.shared .align 16 .b8 tile[16];"), [], 16, 1, threads)

    run("cp.async.bulk.wait_group.read 0;")
    with pytest.raises(EmulationError, match=r"still reads in `st\.shared.*bulk store of warp 0"):
        run("")
