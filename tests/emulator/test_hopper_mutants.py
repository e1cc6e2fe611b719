"""Every small change to the Hopper kernels is noticed, or proved to change nothing."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hopper_kernels import AttentionLike, ClusterPair, kernel_ptx
from mutation import Mutant, dropped, judge, mutants, thinned

# kind → why a mutant of it computes the same on every schedule
EQUIVALENT = {
    "K-major leading offset": "with a swizzle, a K-major operand of one k16 step never leaves its "
    "row of the atom, so the leading-dimension offset is not used (PTX ISA, matrix descriptor)",
    "bulk wait for reads only": "nothing in the kernel reads what it stored, and the launch ends "
    "after all writes: only the reads of shared memory must be over before the block ends",
    "election by all lanes, to store": "the lanes store the same bytes to the same place, and each "
    "commits and waits for its own group",
    "alignment of the tiles": "dynamic shared memory begins at address 1024 when there is no "
    "static part, which is aligned already",
}


def _descriptor_mutants(ptx: str) -> list[Mutant]:
    """Fields of the 64-bit constants that the descriptors are built from."""
    found = []
    constants = sorted(set(re.findall(r"or\.b64[^;]*, (\d{15,}|-\d{15,});", ptx)))
    for text in constants:
        bits = int(text) & (1 << 64) - 1
        mn_major = (bits >> 16 & 0x3FFF) > 1
        changes = {
            "stride offset": bits ^ (96 << 32),
            "swizzle mode": bits ^ (3 << 62),
            "MN-major leading offset" if mn_major else "K-major leading offset": bits ^ (3 << 16),
        }
        for kind, changed in changes.items():
            signed = changed - (1 << 64) if changed >> 63 else changed
            found += mutants(ptx, kind, rf"(or\.b64[^;]*, ){re.escape(text)};", rf"\g<1>{signed};")
    return found


def attention_mutants() -> list[Mutant]:
    ptx = kernel_ptx("attention_like")
    return [
        *dropped(ptx, "barrier dropped", r"bar\.sync"),
        *dropped(ptx, "fence.mbarrier_init dropped", r"fence\.mbarrier_init"),
        *dropped(ptx, "fence.proxy.async dropped", r"fence\.proxy"),
        *dropped(ptx, "wgmma.fence dropped", r"wgmma\.fence"),
        *dropped(ptx, "wgmma commit dropped", r"wgmma\.commit_group"),
        *dropped(ptx, "wgmma wait dropped", r"wgmma\.wait_group"),
        *mutants(ptx, "wgmma wait weakened", r"(wgmma\.wait_group\.sync\.aligned) 0", r"\1 1"),
        *mutants(ptx, "stage freed before its products are done",
                 r"(wgmma\.wait_group\.sync\.aligned 0;)((?:(?!wgmma)[^@])*@%p\d+ bra[^:]*?"
                 r"mbarrier\.arrive\.shared::cta[^:]*\n\$L__BB0_\d+:)", r"\2\n\1"),
        *mutants(ptx, "transposition of B", r"p, 1, 1, 0, 0;", "p, 1, 1, 0, 1;"),
        *mutants(ptx, "transposition of A", r"p, 1, 1, 0, 0;", "p, 1, 1, 1, 0;"),
        *mutants(ptx, "no transposition of B", r"p, 1, 1, 1;", "p, 1, 1, 0;"),
        *mutants(ptx, "negated A", r"p, 1, 1, (0, 0|1);", r"p, -1, 1, \1;"),
        *mutants(ptx, "operands swapped", r"(\}, )(%rd\d+), (%rd\d+)(, p, 1)", r"\1\3, \2\4"),
        *mutants(ptx, "A registers swapped", r"\{(%r\d+), (%r\d+), (%r\d+), (%r\d+)\}, (%rd\d+), p",
                 r"{\2, \1, \3, \4}, \5, p"),
        *mutants(ptx, "scale-d inverted", r"setp\.ne\.b32 p,", "setp.eq.b32 p,"),
        *_descriptor_mutants(ptx),
        *mutants(ptx, "wait for a phase skipped",
                 r"mbarrier\.try_wait\.parity\.shared::cta\.b64 p, [^;]*;", "setp.eq.u32 p, 0, 0;"),
        *_flipped(ptx),
        *mutants(ptx, "expect_tx too large", r"(expect_tx[^;]*\], )%r\d+;", r"\g<1>16400;"),
        *mutants(ptx, "expect_tx too small", r"(expect_tx[^;]*\], )%r\d+;", r"\g<1>8192;"),
        *dropped(ptx, "expect_tx dropped", r"mbarrier\.arrive\.expect_tx"),
        *dropped(ptx, "arrival dropped", r"mbarrier\.arrive\.shared"),
        *_count_mutants(ptx),
        *dropped(ptx, "init dropped", r"mbarrier\.init"),
        *dropped(ptx, "load dropped", r"cp\.async\.bulk\.tensor\.2d\.shared"),
        *mutants(ptx, "coordinates swapped", r"\{(%r\d+), (%r\d+)\}\]", r"{\2, \1}]"),
        *dropped(ptx, "store dropped", r"cp\.async\.bulk\.tensor\.2d\.global"),
        *dropped(ptx, "bulk commit dropped", r"cp\.async\.bulk\.commit_group"),
        *dropped(ptx, "bulk wait dropped", r"cp\.async\.bulk\.wait_group"),
        *mutants(ptx, "bulk wait weakened", r"(bulk\.wait_group) 0", r"\1 1"),
        *mutants(ptx, "bulk wait for reads only", r"(bulk\.wait_group) 0", r"\1.read 0"),
        *mutants(ptx, "stmatrix transposed", r"(stmatrix\.sync\.aligned\.m8n8\.x4)", r"\1.trans"),
        *mutants(ptx, "stmatrix registers swapped", r"(stmatrix[^{]*)\{(%r\d+), (%r\d+)",
                 r"\1{\3, \2"),
        *dropped(ptx, "stmatrix dropped", r"stmatrix"),
        *dropped(ptx, "setmaxnreg.dec dropped", r"setmaxnreg\.dec"),
        *mutants(ptx, "setmaxnreg.inc too large", r"(setmaxnreg\.inc[^;]*) 240", r"\1 248"),
        *_elections(ptx),
        *_every_lane(ptx),
        *mutants(ptx, "named barrier of more warps", r"mov\.u32 (\t%r\d+), 128;",
                 r"mov.u32 \1, 256;"),
        *mutants(ptx, "alignment of the tiles", r"add\.s32 (\t%r\d+, %r\d+), 1023;",
                 r"add.s32 \1, 0;"),
    ]  # fmt: skip


def _count_mutants(ptx: str) -> list[Mutant]:
    """One arrival more and one less than each barrier was made for."""
    found = []
    for number, match in enumerate(re.finditer(r"(mbarrier\.init[^;]*\], )(%r\d+);", ptx)):
        count = int(re.search(rf"mov\.u32 \t{match[2]}, (\d+);", ptx)[1])
        for kind, other in (("too large", count + 1), ("too small", count - 1)):
            if other:
                changed = ptx[: match.start()] + f"{match[1]}{other};" + ptx[match.end() :]
                found.append(Mutant(f"init count {kind}", f"init #{number + 1}", changed))
    return found


def _elections(ptx: str) -> list[Mutant]:
    """Every lane is elected: to load, and to store."""
    loads, stores = mutants(ptx, "", r"(elect\.sync _\|p, 0xffffffff;)", r"\1 setp.eq.u32 p, 0, 0;")
    return [
        replace(loads, kind="election by all lanes, to load"),
        replace(stores, kind="election by all lanes, to store"),
    ]


def _flipped(ptx: str) -> list[Mutant]:
    """The parity of each wait turned round, by an instruction before it."""
    found = []
    for number, match in enumerate(re.finditer(r"(mbarrier\.try_wait[^;]*, )(%r\d+);", ptx)):
        turned = f"xor.b32 turned, {match[2]}, 1;\n{match[1]}turned;"
        changed = ptx[: match.start()] + "{ .reg .b32 turned;\n" + turned + "}" + ptx[match.end() :]
        found.append(Mutant("parity inverted", f"try_wait #{number + 1}", changed))
    return found


def _every_lane(ptx: str) -> list[Mutant]:
    """The branch around an arrival of lane 0 taken by nobody."""
    found = []
    pattern = r"@%p\d+ bra[^;]*;(\s+add\.s32[^;]*;\s+//[^\n]*\s+mbarrier\.arrive\.shared)"
    for number, match in enumerate(re.finditer(pattern, ptx)):
        changed = ptx[: match.start()] + match[1] + ptx[match.end() :]
        found.append(Mutant("lane 0 becomes every lane", f"arrival #{number + 1}", changed))
    assert found
    return found


def cluster_mutants() -> list[Mutant]:
    ptx = kernel_ptx("cluster_pair")
    return [
        *dropped(ptx, "remote arrival dropped", r"mbarrier\.arrive\.release"),
        *mutants(ptx, "remote arrival at home", r"mapa\.shared::cluster\.u32 r, (%r\d+), %r\d+;",
                 r"mov.u32 r, \1;"),
        *mutants(ptx, "multicast to one", r"(multicast::cluster[^;]*\], )%rs\d+;", r"\g<1>1;"),
        *dropped(ptx, "cluster arrive dropped", r"barrier\.cluster\.arrive"),
        *dropped(ptx, "cluster wait dropped", r"barrier\.cluster\.wait"),
        *mutants(ptx, "half of the bytes expected", r"(expect_tx[^;]*\], )%r\d+;", r"\g<1>1024;"),
        *mutants(ptx, "empty count of one block", r"(mbarrier\.init[^;]*\], )%r\d+;", r"\g<1>4;"),
        *mutants(ptx, "wait for a phase skipped",
                 r"mbarrier\.try_wait\.parity\.shared::cta\.b64 p, [^;]*;", "setp.eq.u32 p, 0, 0;"),
    ]  # fmt: skip


@pytest.mark.parametrize("kernel", [AttentionLike(), ClusterPair()], ids=lambda k: k.name)
def test_the_unchanged_kernel_is_right_and_never_reported(kernel):
    verdict = judge(kernel_ptx(kernel.name), kernel.run, kernel.is_right, range(6))
    assert not verdict.noticed, verdict


@pytest.mark.parametrize(
    ("kernel", "make"),
    [(AttentionLike(), attention_mutants), (ClusterPair(), cluster_mutants)],
    ids=lambda x: getattr(x, "name", ""),
)
def test_every_mutant_is_noticed_or_proved_equivalent(kernel, make):
    missed = []
    for mutant in thinned(make(), once=EQUIVALENT):
        verdict = judge(mutant.ptx, kernel.run, kernel.is_right)
        if verdict.noticed == (mutant.kind in EQUIVALENT):
            missed.append(f"{mutant} {verdict}")
    assert not missed, "\n".join(missed)
