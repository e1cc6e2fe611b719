"""Mutants of the decode kernel: of its order, its slices and its pages; each is noticed."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from mutation import Mutant, dropped, judge, mutants, thinned

from flashsmith.base.dtypes import from_bits, to_bits
from flashsmith.check.cases import Case, inputs_of
from flashsmith.check.tolerance import distance, expectation
from flashsmith.compile import compiler
from flashsmith.compile.compiler import compile_ptx
from flashsmith.compile.header_closure import INCLUDE_ROOT
from flashsmith.compile.unit import unit_source
from flashsmith.emulator.options import EmulatorOptions
from flashsmith.emulator.program import load
from flashsmith.kernels.kernel import KernelConfig
from flashsmith.kernels.parse import parse_config
from flashsmith.kernels.plans import needs_of
from flashsmith.kernels.sm80_decode.plan import MOST_COUNTERS
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.needs import Needs
from flashsmith.problem.signature import signature_of
from flashsmith.runtime.emulated import EmulatedDevice
from flashsmith.runtime.run import run_arrays
from flashsmith.runtime.tensors import numbers_of

CONFIG = parse_config("decode(FP16, 64, 16, 16, 2): slice_128+most_32+stages_3+ctas_2")
IN_TURN = replace(CONFIG, persistent=True)  # ctas that take several slices each
IN_RUNS = replace(CONFIG, runs=True)  # the same, of slices that follow each other
# Sequences of one slice, of three and of two that are one; pages that no kv block ends with.
PROBLEM = AttentionProblem(
    *(3, 6, 2, 2, 300, 64, CONFIG.dtype),
    causal=True,
    lse=True,
    k_lengths=True,
    page=12,
    pages=53,
)
LENGTHS = (100, 299, 197)
LONG = replace(PROBLEM, batch=1, k_len=1200, page=0, pages=0)  # ten slices: in which order?
ARCH = "sm_90a"
# kind → what the emulator does not model, so that nothing of it shows
NOT_MODELLED = {
    "barrier before the counter dropped": "plain stores to global memory are seen by all ctas at "
    "once, and a schedule in which one comes this late is rare",
    "counter without order": "plain stores to global memory are seen by all ctas at once",
}


class Changed(EmulatedDevice):
    """An emulator that runs another text in place of the kernel."""

    def __init__(self, ptx: str, options: EmulatorOptions, sm_count: int = 1) -> None:
        super().__init__(options=options, sm_count=sm_count)
        self._program = load(ptx)

    def _load(self, kernel: object) -> object:
        return self._program


def run(ptx: str, options: EmulatorOptions, config: KernelConfig = CONFIG) -> bool:
    """Whether O and LSE are right."""
    found = run_arrays(Changed(ptx, options), config, PROBLEM, inputs())
    expected = expected_outputs()
    return all(
        distance(r.name, expected[r.name], numbers_of(r, found[r.name], PROBLEM)).ok
        for r in signature_of(PROBLEM).outputs(PROBLEM)
    )


@cache
def inputs():
    lengths = np.array(LENGTHS, np.int32)
    return {**inputs_of(Case("mutants", PROBLEM)), "k_lengths": lengths.view(np.uint32)}


@cache
def expected_outputs():
    return expectation(PROBLEM, inputs())


@cache
def kernel_ptx() -> str:
    return compile_ptx(CONFIG, needs_of(CONFIG, PROBLEM), ARCH).ptx


def changed_source(
    header: str,
    before: str,
    after: str,
    problem: AttentionProblem = PROBLEM,
    config: KernelConfig = CONFIG,
) -> str:
    """The PTX of the kernel with one place of one header changed."""
    return changed_kernel(header, before, after, config, needs_of(config, problem))


def changed_kernel(header: str, before: str, after: str, config: KernelConfig, needs: Needs) -> str:
    """The same of one kernel of several."""
    seen: set[str] = set()

    def inlined(text: str) -> str:
        return re.sub(r'#include "(flashsmith/[^"]+)"', read, text)

    def read(match: re.Match[str]) -> str:
        name = match.group(1)
        if name in seen:
            return ""
        seen.add(name)
        text = (INCLUDE_ROOT / name).read_text(encoding="utf-8").replace("#pragma once", "")
        if name.endswith(header):
            assert text.count(before) == 1, (header, before)
            text = text.replace(before, after)
        return inlined(text)

    def changed_unit(config: KernelConfig, needs: Needs) -> str:
        return inlined(unit_source(config, needs))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiler, "unit_source", changed_unit)
        ptx = compile_ptx(config, needs, ARCH).ptx
    assert any(name.endswith(header) for name in seen), f"no header is called {header}"
    return ptx


# What is wrong, the header, its text and what stands there instead.
SOURCES = {
    "page off by one": (
        "sm80/decode/copies.cuh",
        "first + page_of(key)",
        "first + page_of(key) + 1",
    ),
    "row of a page off by one": ("sm80/decode/copies.cuh", "place = key -", "place = key + 1 -"),
    "page of another sequence": (
        "sm80/decode/copies.cuh",
        "static_cast<i64>(batch_) * args_.table_pages",
        "static_cast<i64>(0)",
    ),
    "entries not clamped": (
        "sm80/decode/copies.cuh",
        "return min(max(entry, 0),",
        "return max(entry,",
    ),
    "pages of the block before": ("decode/team.cuh", "key_of(block + 1)", "key_of(block)"),
    "slice counted twice": (
        "decode/output.cuh",
        "if (slice + i < work_.slices) total",
        "if (slice + i <= work_.slices) total",
    ),
    "last slice left out": (
        "decode/output.cuh",
        "if (slice + i < work_.slices) total",
        "if (slice + i < work_.slices - 1) total",
    ),
    "added up before the last has come": (
        "decode/output.cuh",
        "work_.slices - count)",
        "work_.slices - count - 1)",
    ),
    "counter left behind": ("decode/output.cuh", "counter, 0);", "counter, 1);"),
    "length of the sequence before": (
        "decode/queue.cuh",
        "work.k_len = length_of(sequence)",
        "work.k_len = length_of(sequence ? sequence - 1 : 0)",
    ),
    "ctas behind the last slice stay": (
        "decode/queue.cuh",
        "return work.slice < work.slices",
        "return work.slice <= work.slices",
    ),
    "two slices are not one": ("decode/kernel.cuh", "return {2 * kKeys, 1}", "return {kKeys, 1}"),
    "in turn: length of the sequence before": (
        "decode/queue.cuh",
        "ptx::shfl_idx(k_len_, lane)",
        "ptx::shfl_idx(k_len_, lane ? lane - 1 : 0)",
    ),
    "length not clamped": ("decode/queue.cuh", "min(max(given, 0), args_.k_len)", "given"),
    "in turn: slices of the sequences before not counted": (
        "decode/queue.cuh",
        "if (lane >= distance) end_ += other",
        "if (lane > distance) end_ += other",
    ),
    "block taken by two teams": ("decode/team.cuh", "block * Kernel::kTeams + team_)", "block)"),
    "mask not moved with the length": ("decode/kernel.cuh", "args.k_len - work.k_len", "0"),
}


@pytest.mark.parametrize("kind", SOURCES)
def test_a_wrong_slice_page_or_length_is_noticed(kind):
    case = inputs()
    bad = dict(case)
    if "clamped" in kind:  # inputs that need it
        bad["k_lengths"] = np.array([3000, -7, 12], np.int32).view(np.uint32)
        bad["block_table"] = (case["block_table"].view(np.int32) + 60).view(np.uint32)
    config = IN_TURN if kind.startswith("in turn") else CONFIG
    ptx = changed_source(*SOURCES[kind], config=config)

    def is_right(text: str, options: EmulatorOptions) -> bool:
        device = Changed(text, options)
        unchanged = EmulatedDevice(options=options)
        if "clamped" in kind:
            runs = [run_arrays(d, config, PROBLEM, bad)["o"] for d in (device, unchanged)]
            return bool(np.array_equal(*runs))
        run_arrays(device, config, PROBLEM, bad)
        counters = device.download(device.workspace(1), 4 * MOST_COUNTERS)
        one_by_one = replace(options, chunk_lanes=config.threads)
        return not counters.any() and all(run(text, o, config) for o in (options, one_by_one))

    assert judge(ptx, is_right, bool, range(2)).noticed


SCHEDULES = [
    (EmulatorOptions(seed=seed, chunk_lanes=lanes), sm_count)
    for seed, lanes, sm_count in [
        *((None, 4096, 1), (None, 64, 1), (None, 4096, 40)),
        *(
            (1, 4096, 4),
            (3, 128, 4),
            (4, 4096, 40),
            (8, 4096, 40),
        ),  # the last: other slices end last
    ]
]


def bits_of_schedules(ptx: str, config: KernelConfig, schedules=SCHEDULES):
    """O and LSE of a sequence of ten slices, the last of them short, on every schedule.

    The others cancel two by two, so that what is rounded in their sums is not small.
    """
    given = dict(inputs_of(Case("long", LONG)))
    v = from_bits(given["v"], CONFIG.dtype).reshape(given["v"].shape).copy()
    k = given["k"].copy()
    for first in range(0, 1024, 256):
        k[:, first + 128 : first + 256] = k[:, first : first + 128]
        v[:, first : first + 128] *= 1000
        v[:, first + 128 : first + 256] = -v[:, first : first + 128]
    given |= {"k": k, "v": to_bits(v, CONFIG.dtype)}
    given["k_lengths"] = np.array([1153], np.int32).view(np.uint32)
    for options, sm_count in schedules:
        device = Changed(ptx, replace(options, mma_in_order=True), sm_count)
        made = run_arrays(device, config, LONG, given)
        yield made["o"].tobytes(), made["lse"].tobytes()


# Judged: as many ctas as on a GPU run at a time, so that slices end in other orders.
@pytest.mark.judged
def test_no_schedule_and_no_number_of_sms_reaches_the_bits():
    found = set()
    for config in (CONFIG, IN_TURN, IN_RUNS):
        ptx = compile_ptx(config, needs_of(config, LONG), ARCH).ptx
        found |= set(bits_of_schedules(ptx, config))
    assert len(found) == 1


@pytest.mark.judged
def test_slices_added_up_in_the_order_in_which_they_came_are_noticed():
    ptx = changed_source(
        "decode/output.cuh",
        "const i32 number = min(slice + i, work_.slices - 1);",
        "const i32 number = (min(slice + i, work_.slices - 1) + work_.slice) % work_.slices;",
        LONG,
    )
    # Who comes last is drawn: as many schedules as it takes for two of them to differ.
    more = [(EmulatorOptions(seed=seed), 40) for seed in range(20, 50)]
    found = bits_of_schedules(ptx, CONFIG, [*SCHEDULES, *more])
    first = next(found)
    assert any(bits != first for bits in found)


def order_mutants(ptx: str) -> list[Mutant]:
    """Barriers, waits and commits dropped; waits and the counter weakened."""
    barriers = dropped(ptx, "barrier dropped", r"bar\.sync")
    before_counter = len(re.findall(r"bar\.sync", ptx[: ptx.index("atom.acq_rel")])) - 1
    barriers[before_counter] = replace(barriers[before_counter], kind=next(iter(NOT_MODELLED)))
    return [
        *barriers,
        *dropped(ptx, "warp barrier dropped", r"bar\.warp\.sync"),
        *dropped(ptx, "commit dropped", r"cp\.async\.commit_group"),
        *dropped(ptx, "wait for copies dropped", r"cp\.async\.wait_group"),
        *mutants(ptx, "wait weakened", r"cp\.async\.wait_group 1", "cp.async.wait_group 2"),
        *mutants(ptx, "counter without order", r"atom\.acq_rel\.gpu", "atom.relaxed.gpu"),
        *mutants(ptx, "copy dropped", r"^[ \t]*cp\.async\.cg[^;]*;", ""),
        *mutants(ptx, "copy to another place", r"(cp\.async\.cg[^\[]*\[%r\d+)", r"\1+16"),
        *mutants(ptx, "ldmatrix transposed", r"(ldmatrix[^ ]*x4)\.shared", r"\1.trans.shared"),
    ]


def test_the_unchanged_kernel_is_right_and_never_reported():
    verdict = judge(kernel_ptx(), run, bool, range(3))
    assert not verdict.noticed, verdict


def test_every_mutant_of_the_order_is_noticed_or_not_modelled():
    missed = []
    for mutant in thinned(order_mutants(kernel_ptx()), most=5):
        verdict = judge(mutant.ptx, run, bool)
        if verdict.noticed == (mutant.kind in NOT_MODELLED):
            missed.append(f"{mutant} {verdict}")
    assert not missed, "\n".join(missed)
