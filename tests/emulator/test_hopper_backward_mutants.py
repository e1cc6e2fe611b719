"""Mutants of the backward kernel on wgmma: of its barriers, fences, rings and flags."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache, partial

import numpy as np
import pytest
from mutation import Mutant, dropped, judge, mutants, thinned
from test_backward_mutants import OneChanged
from test_decode_mutants import changed_kernel

from flashsmith.base.errors import EmulationError
from flashsmith.check import cases
from flashsmith.check.cases import Case, inputs_of
from flashsmith.check.tolerance import distance, expectation_of
from flashsmith.compile.compiler import compile_ptx
from flashsmith.emulator.options import EmulatorOptions
from flashsmith.kernels.kernel import KernelConfig
from flashsmith.kernels.parse import parse_config
from flashsmith.kernels.plans import kernels_of, plan
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.signature import signature_of
from flashsmith.runtime.emulated import EmulatedDevice
from flashsmith.runtime.run import run_arrays
from flashsmith.runtime.tensors import numbers_of

CONFIG = parse_config("hopper_bwd(BF16, 128): ds_3+turns+fold+early_dv+late_fences")
KERNEL = "sm90_backward_tiles"
ROUNDING = replace(CONFIG, rounds_dq=True)
# Three heads: sums of the first are complete before the last kv block ends.
ROUNDING_CASE = Case("rounding", AttentionProblem(1, 3, 3, 65, 260, 128, operation="backward"))
# Two parts of one kv block, at the same time: of sums in any order no other flags are there.
IN_PARTS = replace(CONFIG, unordered=True, part_mb=10)
PARTS_CASE = Case("parts", AttentionProblem(1, 2, 1, 65, 100, 128, operation="backward"))
# Three kv blocks that begin at tiles 0, 2 and 1 of three, of heads in groups.
STAGGERED = replace(CONFIG, unordered=True, staggered=True)
STAGGERED_CASE = Case("apart", AttentionProblem(1, 4, 2, 130, 260, 128, operation="backward"))
# Two q tiles, ragged tails, four kv blocks on two SMs: each adds to every dQ.
CASE = Case("mutants", AttentionProblem(1, 1, 1, 64 + 21, 3 * 128 + 29, 128, operation="backward"))
# The same in little for wide heads, whose warps add to dQ themselves.
WIDE = parse_config("hopper_bwd(BF16, 256): ds_2+dq_red")
WIDE_CASE = Case("wide", AttentionProblem(1, 1, 1, 64 + 1, 2 * 64 + 1, 256, operation="backward"))
# A launch for dQ: three kv blocks for two stages of K and one of V, rows that end in a warpgroup's.
PASSES = parse_config("hopper_bwd(BF16, 256): ds_2+turns+two_passes+early_release+v_halves")
QUERIES = "sm90_backward_queries"
PASSES_CASE = Case("dq", AttentionProblem(1, 1, 1, 65, 130, 256, operation="backward"))
# Two packed sequences, whose last tiles of rows and keys end early; others lie around them.
ROWS, KEYS = [5, 79, 90], [7, 144, 170]
PACKED_CASE = Case(
    "packed", AttentionProblem(1, 1, 1, 104, 188, 128, operation="backward", sequences=2)
)


class Poisoned(OneChanged):
    """Scratch memory holds NaN before every call: what is not written must not be read."""

    @property
    def sm_count(self) -> int:
        """Fewer than kv blocks: rings go on from one to the next."""
        return 2

    def scratch(self, n_bytes: int, stream: int = 0) -> int:
        address = super().scratch(n_bytes, stream)
        self.fill(address, 0xFFFFFFFF, n_bytes // 4)
        return address


@cache
def original(whole: KernelConfig = CONFIG, case: Case = CASE, kernel: str = KERNEL) -> str:
    for config, needs in kernels_of(whole, case.problem):
        if kernel == config.NAME:
            return compile_ptx(config, needs, "sm_90a").ptx
    raise AssertionError


def run(ptx: str, options: EmulatorOptions) -> bool:
    """Whether all gradients are right, with sums in the order that the kernel promises."""
    device = Poisoned(f"flashsmith_{KERNEL}_", ptx, replace(options, ordered_sums=True))
    return is_right(device, CONFIG, CASE)


def is_right(device: EmulatedDevice, config: KernelConfig, case: Case) -> bool:
    found = run_arrays(device, config, case.problem, inputs_of(case))
    expected = expectation_of(case)
    return all(
        distance(r.name, expected[r.name], numbers_of(r, found[r.name], case.problem)).ok
        for r in signature_of(case.problem).outputs(case.problem)
    )


def run_wide(ptx: str, options: EmulatorOptions) -> bytes:
    """The sums of dQ in float32, whose bits follow from their order; none of a wrong gradient."""
    device = Poisoned(f"flashsmith_{KERNEL}_", ptx, replace(options, mma_in_order=True))
    if not is_right(device, WIDE, WIDE_CASE):
        return b""
    launch = plan(WIDE, WIDE_CASE.problem, sm_count=device.sm_count)[1]
    begin = EmulatedDevice.scratch(device, launch.scratch_bytes) + launch.scratch.statistics
    return device.download(begin, launch.scratch.dq_sums).tobytes()


@cache
def right_sums() -> bytes:
    return run_wide(original(WIDE, WIDE_CASE), EmulatorOptions())


def order_mutants(ptx: str) -> list[Mutant]:
    """What orders one warp, or one block, after another.

    Single waits and arrivals of the rings are not among them: two steps a block are too few for
    every stage to be waited for, and a longer case takes a minute a mutant. Nor are turns that are
    not taken: they order nothing that is read or written.
    """
    return [
        *dropped(ptx, "barrier of the block dropped", r"bar\.sync 0"),
        *dropped(ptx, "turn not given", r"bar\.arrive"),
        *dropped(ptx, "fence of staged numbers dropped", r"fence\.proxy\.async\.shared"),
        *dropped(ptx, "fence before a flag dropped", r"fence\.proxy\.async\.global"),
        *mutants(ptx, "flag without release", r"st\.release\.gpu", "st.relaxed.gpu"),
        *mutants(ptx, "flag without acquire", r"ld\.acquire\.gpu", "ld.relaxed.gpu"),
        *dropped(ptx, "flag not set", r"st\.release\.gpu"),
        *mutants(ptx, "first sum added, not stored",
                 r"cp\.async\.bulk\.global\.shared::cta\.bulk_group",
                 "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32"),
        *dropped(ptx, "wait for sums dropped", r"cp\.async\.bulk\.wait_group 0"),
        *dropped(ptx, "wait for reads dropped", r"@p cp\.async\.bulk\.wait_group\.read 0"),
        *dropped(ptx, "commit of sums dropped", r"@p cp\.async\.bulk\.commit_group"),
        *_register_fences(ptx),
        *dropped(ptx, "wgmma commit dropped", r"wgmma\.commit_group"),
        *dropped(ptx, "wgmma wait dropped", r"wgmma\.wait_group"),
        *mutants(ptx, "wgmma wait weakened", r"(wgmma\.wait_group\.sync\.aligned) 0", r"\1 1"),
        *dropped(ptx, "expect_tx dropped", r"mbarrier\.arrive\.expect_tx"),
        *dropped(ptx, "load dropped", r"cp\.async\.bulk(\.tensor\.4d)?\.shared::cluster"),
        *_counts(ptx),
    ]  # fmt: skip


def _register_fences(ptx: str) -> list[Mutant]:
    """The fences before products of P and dS; the others' products read nothing from registers."""
    places = [m.end() for m in re.finditer(r"wgmma\.fence[^;]*;", ptx)]
    found = dropped(ptx, "wgmma.fence dropped", r"wgmma\.fence")
    products = re.compile(r"wgmma\.mma_async[^;]*?\}, (\{)?", re.DOTALL)
    return [m for m, at in zip(found, places, strict=True) if products.search(ptx, at)[1]]


def _counts(ptx: str) -> list[Mutant]:
    """One arrival more than each barrier was made for."""
    found = []
    for number, match in enumerate(re.finditer(r"(mbarrier\.init[^;]*\], )(%r\d+);", ptx)):
        count = int(re.search(rf"mov\.u32 \t{match[2]}, (\d+);", ptx)[1])
        changed = ptx[: match.start()] + f"{match[1]}{count + 1};" + ptx[match.end() :]
        found.append(Mutant("one arrival too many", f"init #{number + 1}", changed))
    return found


def wide_mutants(ptx: str) -> list[Mutant]:
    """Of what orders warps that hand P and dS over and add to dQ."""
    return [
        *dropped(ptx, "fence of dS dropped", r"fence\.proxy\.async\.shared"),
        # Everywhere: a single one changes bits only where two sums happen to change places.
        Mutant("flag without release", "all", ptx.replace("st.release.gpu", "st.relaxed.gpu")),
        Mutant("flag without acquire", "all", ptx.replace("ld.acquire.gpu", "ld.relaxed.gpu")),
        *dropped(ptx, "flag not set", r"@p st\.release\.gpu"),
        *mutants(ptx, "first sum added, not stored", r"@p st\.global\.v4\.f32",
                 "@p red.global.add.v4.f32"),
        *[replace(m, kind="P awaited by too many") for m in _counts(ptx)[-2:]],
    ]  # fmt: skip


def queries_mutants(ptx: str) -> list[Mutant]:
    """Of the launch that multiplies dQ."""
    return [
        *dropped(ptx, "barrier of the block dropped", r"bar\.sync 0"),
        *dropped(ptx, "turn not given", r"bar\.arrive"),
        *_register_fences(ptx),
        *dropped(ptx, "wgmma commit dropped", r"wgmma\.commit_group"),
        *dropped(ptx, "wgmma wait dropped", r"wgmma\.wait_group"),
        *dropped(ptx, "expect_tx dropped", r"mbarrier\.arrive\.expect_tx"),
        *dropped(ptx, "load dropped", r"cp\.async\.bulk\.tensor\.4d\.shared::cluster"),
        *dropped(ptx, "stage not released", r"@p mbarrier\.arrive"),
        *_counts(ptx)[:6],  # of Q, dO and V; those of K are behind them
    ]


def without_dq_mutants(ptx: str) -> list[Mutant]:
    """Of the launch beside it, whose warpgroups release Q and dO one after the other."""
    return [
        *dropped(ptx, "wgmma wait dropped", r"wgmma\.wait_group"),
        *dropped(ptx, "stage not released", r"@p mbarrier\.arrive"),
        *[replace(m, kind="P awaited by too many") for m in _counts(ptx)[-2:]],
    ]


def run_passes(kernel: str, ptx: str, options: EmulatorOptions) -> bool:
    """Whether all gradients are right."""
    return is_right(Poisoned(f"flashsmith_{kernel}_", ptx, options), PASSES, PASSES_CASE)


def packed_mutants(ptx: str) -> list[Mutant]:
    """Of the warp that clears what lies behind a sequence's end; its code stands last."""
    at = ptx.rindex("fence.proxy.async.shared")
    sweeper = [
        dropped(ptx[at:], "fence of cleared rows dropped", r"fence\.proxy\.async\.shared")[0],
        dropped(ptx[at:], "rows not cleared", r"st\.shared\.v4\.b32")[0],
        dropped(ptx[at:], "cleared tile not handed on", r"@p mbarrier\.arrive")[0],
    ]
    return [
        *[replace(mutant, ptx=ptx[:at] + mutant.ptx) for mutant in sweeper],
        replace(_counts(ptx)[0], kind="tail awaited by too many"),
    ]


def run_packed(ptx: str, options: EmulatorOptions) -> bool:
    """Whether all gradients are right where rows and keys of no sequence are no numbers."""
    device = Poisoned(f"flashsmith_{KERNEL}_", ptx, replace(options, ordered_sums=True))
    problem, inputs = PACKED_CASE.problem, inputs_of(PACKED_CASE)
    for names, (first, *_, end) in ((("q", "do", "o"), ROWS), (("k", "v"), KEYS)):
        for name in names:
            inputs[name] = inputs[name].copy()
            inputs[name][:, :first] = inputs[name][:, end:] = 0x7FC0
    found = run_arrays(device, CONFIG, problem, inputs)
    expected = expectation_of(PACKED_CASE)
    return all(
        distance(r.name, expected[r.name], numbers_of(r, found[r.name], problem)).ok
        for r in signature_of(problem).outputs(problem)
    )


def rounding_mutants(ptx: str) -> list[Mutant]:
    """Of the warps that multiply, where they round sums that others have counted."""
    looks = r"(@p) ld\.acquire\.gpu\.global\.u32 (%r\d+), \[[^\]]*\]"
    return [
        *mutants(ptx, "sums not awaited", looks, r"\1 mov.u32 \2, 65535"),
        *mutants(ptx, "look without acquire", r"@p ld\.acquire\.gpu", "@p ld.relaxed.gpu"),
    ]


def run_rounding(ptx: str, options: EmulatorOptions) -> bool:
    """Whether all gradients are right."""
    device = Poisoned(f"flashsmith_{KERNEL}_", ptx, replace(options, ordered_sums=True))
    return is_right(device, ROUNDING, ROUNDING_CASE)


def test_every_mutant_of_rounding_is_noticed():
    ptx = original(ROUNDING, ROUNDING_CASE)
    assert not judge(ptx, run_rounding, bool, range(1)).noticed
    missed = [
        m for m in rounding_mutants(ptx) if not judge(m.ptx, run_rounding, bool, range(1)).noticed
    ]
    assert not missed, "\n".join(map(str, missed))


def parts_mutants(ptx: str) -> list[Mutant]:
    """Of the warps that add a part's dK and dV to those of the part before.

    What orders plain stores behind a flag is not among them: they are seen at once here.
    """
    waits = r"ld\.acquire\.gpu\.global\.u32 (%r\d+), \[[^\]]*\]"
    return [
        # That of dV: behind it nobody comes too early to dK.
        *mutants(ptx, "part not awaited", waits, r"mov.u32 \1, 1")[:1],
        *dropped(ptx, "flag not set", r"@p st\.release\.gpu"),
        *dropped(ptx, "part not handed on", r"@p st\.global\.v4\.f32"),
    ]


def run_parts(ptx: str, options: EmulatorOptions) -> bool:
    """Whether all gradients are right."""
    return is_right(Poisoned(f"flashsmith_{KERNEL}_", ptx, options), IN_PARTS, PARTS_CASE)


def test_every_mutant_of_parts_is_noticed():
    ptx = original(IN_PARTS, PARTS_CASE)
    assert not judge(ptx, run_parts, bool, range(1)).noticed
    of_each = thinned(parts_mutants(ptx), most=2)
    missed = [m for m in of_each if not judge(m.ptx, run_parts, bool, range(2)).noticed]
    assert not missed, "\n".join(map(str, missed))


# What is wrong with walks that begin at q tiles of their own: the header, its text, and another.
WALKS = {
    "nothing": ("sm90/backward/tile.cuh", "i32 end_head;  ", "i32 end_head; "),
    "the walk goes on behind its heads": (
        "sm90/backward/tile.cuh",
        "if (kStaggered && batch_head == end_head)",
        "if (kStaggered && batch_head < 0)",
    ),
    "dQ goes on behind its heads": (
        "sm90/backward/consumer.cuh",
        "if (Walk::kStaggered && dq_index == dq_end)",
        "if (Walk::kStaggered && dq_index == 0)",
    ),
    "dQ begins at the first tile": (
        "sm90/backward/consumer.cuh",
        "dq_index += Walk<Kernel>::start_tile(args, first_key);",
        "",
    ),
}


@pytest.mark.parametrize("kind", WALKS)
def test_every_mutant_of_walks_that_begin_apart_is_noticed(kind):
    kernels = kernels_of(STAGGERED, STAGGERED_CASE.problem)
    ((tiles, needs),) = [(one, needs) for one, needs in kernels if one.NAME == KERNEL]
    ptx = changed_kernel(*WALKS[kind], tiles, needs)
    device = Poisoned(f"flashsmith_{KERNEL}_", ptx, EmulatorOptions())
    try:
        right = is_right(device, STAGGERED, STAGGERED_CASE)
    except EmulationError:
        right = False
    assert right == (kind == "nothing")


def is_noticed(ptx: str) -> bool:
    return judge(ptx, run, bool, range(2)).noticed


def test_the_unchanged_kernel_is_right_and_never_reported():
    verdict = judge(original(), run, bool, range(2))
    assert not verdict.noticed, verdict


@pytest.mark.parametrize("kind", sorted({m.kind for m in order_mutants(original())}))
def test_every_mutant_is_noticed(kind):
    of_kind = [m for m in order_mutants(original()) if m.kind == kind]
    missed = [m for m in thinned(of_kind) if not is_noticed(m.ptx)]
    assert not missed, "\n".join(map(str, missed))


@pytest.mark.parametrize("kind", sorted({m.kind for m in wide_mutants(original(WIDE, WIDE_CASE))}))
def test_every_mutant_of_wide_heads_is_noticed(kind):
    of_kind = [m for m in wide_mutants(original(WIDE, WIDE_CASE)) if m.kind == kind]
    assert right_sums()
    mutant = of_kind[len(of_kind) // 2]
    assert judge(mutant.ptx, run_wide, lambda sums: sums == right_sums(), range(1)).noticed


@pytest.mark.parametrize(
    ("kernel", "mutants_of"), [(QUERIES, queries_mutants), (KERNEL, without_dq_mutants)]
)
def test_every_mutant_of_two_passes_is_noticed(kernel, mutants_of):
    ptx, run_one = original(PASSES, PASSES_CASE, kernel), partial(run_passes, kernel)
    assert not judge(ptx, run_one, bool, range(1)).noticed
    of_each = thinned(mutants_of(ptx), most=2)
    missed = [m for m in of_each if not judge(m.ptx, run_one, bool, range(1)).noticed]
    assert not missed, "\n".join(map(str, missed))


def test_every_mutant_of_packed_sequences_is_noticed(monkeypatch):
    monkeypatch.setattr(
        cases,
        "drawn_boundaries",
        lambda _, length, random: np.array(ROWS if length == 104 else KEYS, np.int32),
    )
    ptx = original(CONFIG, PACKED_CASE)
    assert not judge(ptx, run_packed, bool, range(1)).noticed
    missed = [
        m for m in packed_mutants(ptx) if not judge(m.ptx, run_packed, bool, range(2)).noticed
    ]
    assert not missed, "\n".join(map(str, missed))


def test_slopes_of_capped_scores_that_are_left_out_are_noticed():
    config = replace(CONFIG, fold=False)
    case = Case("capped", replace(CASE.problem, softcap=1.5), gain=3.0)
    ptx = original(config, case)
    without = re.sub(r"max\.f32 (%f\d+), [^;]*;", r"mov.f32 \1, 0f00000000;", ptx)
    assert without != ptx
    found = [
        is_right(Poisoned(f"flashsmith_{KERNEL}_", text, EmulatorOptions()), config, case)
        for text in (ptx, without)
    ]
    assert found == [True, False]
