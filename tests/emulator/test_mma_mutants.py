"""Every small change to kernels of the mma.sync family is noticed, or proved to change nothing."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest
from mutation import Mutant, dropped, judge, mutants, thinned

from flashsmith.base.dtypes import from_bits
from flashsmith.check.cases import LARGE_LOGITS, Case, inputs_of, quick_cases
from flashsmith.check.tolerance import distance, expectation_of
from flashsmith.compile.compiler import compile_ptx
from flashsmith.emulator.options import EmulatorOptions
from flashsmith.emulator.program import Program, load
from flashsmith.kernels.parse import parse_config
from flashsmith.kernels.plans import needs_of
from flashsmith.runtime.emulated import EmulatedDevice
from flashsmith.runtime.run import run_arrays

# kind → why a mutant of it computes the same on every schedule
EQUIVALENT = {
    "barrier before K is overwritten dropped": "every warp read K for the last time before it "
    "arrived at the barrier that made V of the same block ready, and K is overwritten after it",
    "fence between fragments dropped": "no lane reads what another lane of its warp wrote between "
    "two of these: they keep the compiler from loading all fragments first, nothing else",
    "commit of Q dropped, Q not held": "the copies of Q then belong to the group of the first K, "
    "and the first wait is for both",
}
EVERY_PLACE = 12  # mutants of a kind of which none is left out


class ChangedDevice(EmulatedDevice):
    """An emulator that runs another text in place of every kernel."""

    def __init__(self, ptx: str, options: EmulatorOptions) -> None:
        super().__init__(options=options)
        self._ptx = ptx

    def _load(self, kernel: object) -> Program:
        return load(self._ptx)


@dataclass(frozen=True)
class MmaKernel:
    """One configuration on three heads, four key blocks and ragged tails, in buffers that fit."""

    name: str
    short_form: str
    causal: bool

    @property
    def config(self):
        return parse_config(self.short_form)

    @property
    def case(self) -> Case:
        case = quick_cases(self.config)[int(self.causal)]
        problem = replace(case.problem, lse=True, q_len=64 + 41, k_len=3 * 32 + 29)
        return replace(case, problem=problem, placement="contiguous")

    @property
    def ptx(self) -> str:
        return _ptx(self)

    def run(self, ptx: str, options: EmulatorOptions) -> bool:
        """Whether the output is right, on usual scores and (in order) on large ones."""
        cases = [self.case]
        if options.seed is None:
            cases.append(replace(self.case, gain=LARGE_LOGITS))
        return all(self._is_right(ptx, options, case) for case in cases)

    def _is_right(self, ptx: str, options: EmulatorOptions, case: Case) -> bool:
        device = ChangedDevice(ptx, options)
        found = run_arrays(device, self.config, case.problem, inputs_of(case))
        expected = expectation_of(case)
        o, lse = from_bits(found["o"], case.problem.dtype), found["lse"].view(np.float32)
        near = distance("o", expected["o"], o).ok
        return near and distance("lse", expected["lse"], lse).ok


@cache
def _ptx(kernel: MmaKernel) -> str:
    needs = needs_of(kernel.config, kernel.case.problem)
    return compile_ptx(kernel.config, needs, "sm_90a").ptx


EAGER = MmaKernel("eager", "(FP16, 64, 64, 32, 4): async+eager+swizzled+load_0_0_0_tiles", True)
PLAIN = MmaKernel("plain", "(BF16, 64, 64, 32, 4): load_0_0_0_tiles", False)
FULL = MmaKernel(
    "full",
    "(FP16, 64, 64, 32, 4): async+eager+swizzled+load_2_2_2_tiles+buffer+opt_softmax",
    False,
)

REG = r"(%[rf]\d+)"
FOUR = r"\{%[rf]\d+, %[rf]\d+, %[rf]\d+, %[rf]\d+\}"
MMA = r"(mma\.sync[^{]*\{[^}]*\}, )"


def product_mutants(ptx: str) -> list[Mutant]:
    """Fragments, products and their accumulators."""
    return [
        *mutants(ptx, "ldmatrix transposed", r"(ldmatrix[^ ]*x4)\.shared", r"\1.trans.shared"),
        *mutants(ptx, "ldmatrix not transposed", r"(ldmatrix[^ ]*x4)\.trans", r"\1"),
        *mutants(ptx, "ldmatrix registers swapped", rf"(ldmatrix[^{{]*\{{){REG}, {REG},",
                 r"\1\3, \2,"),
        *mutants(ptx, "ldmatrix a row further", r"(ldmatrix[^\[]*\[%r\d+)(\+\d+)?\]", r"\1+128]"),
        *mutants(ptx, "A registers swapped", MMA + rf"\{{{REG}, {REG}, {REG}, {REG}\}}",
                 r"\1{\2, \4, \3, \5}"),
        *mutants(ptx, "B registers swapped", MMA + rf"({FOUR}, )\{{{REG}, {REG}\}}",
                 r"\1\2{\4, \3}"),
        *mutants(ptx, "A and B of another type", r"f32\.(b?)f16\.b?f16\.f32",
                 "f32.f16.f16.f32" if "f32.bf16" in ptx else "f32.bf16.bf16.f32"),
        *_broken_chains(ptx),
        *mutants(ptx, "halves swapped in packing", rf"(cvt\.rn\.b?f16x2\.f32) {REG}, {REG}, {REG}",
                 r"\1 \2, \4, \3"),
    ]  # fmt: skip


def _broken_chains(ptx: str) -> list[Mutant]:
    """An mma that forgets the product before it in its accumulator."""
    found, ends = [], set()
    pattern = rf"(mma\.sync[^{{]*)({FOUR})(, {FOUR}, \{{%r\d+, %r\d+\}}, )({FOUR})"
    zero = "{0f00000000, 0f00000000, 0f00000000, 0f00000000}"
    for number, match in enumerate(re.finditer(pattern, ptx)):
        if match[4] in ends:
            changed = ptx[: match.start(4)] + zero + ptx[match.end(4) :]
            found.append(Mutant("accumulator not carried on", f"mma #{number + 1}", changed))
        ends.add(match[2])
    return found


def softmax_mutants(ptx: str) -> list[Mutant]:
    """Maxima, sums, exponentials and the mask."""
    shuffle = r"(shfl\.sync\.bfly\.b32 %f\d+, %f\d+, )%r\d+"
    return [
        *mutants(ptx, "shuffle with another lane", shuffle, r"\g<1>16"),
        *mutants(ptx, "shuffle with itself", shuffle, r"\g<1>0"),
        everywhere(ptx, "smaller instead of larger", r"max\.f32", "min.f32"),
        everywhere(ptx, "sign of the maximum lost", rf"neg\.f32 \t{REG}, {REG}", r"mov.f32 \1, \2"),
        *mutants(ptx, "logarithm of the sum lost", r"lg2\.approx\.ftz\.f32", "mov.f32"),
        *mutants(ptx, "sum not inverted", r"rcp\.approx\.ftz\.f32", "mov.f32"),
        *mutants(ptx, "exponential lost", r"ex2\.approx\.ftz\.f32", "mov.f32"),
        *mutants(ptx, "sum of a row loses a term", rf"add\.rn\.f32 {REG}, {REG}, {REG}",
                 r"mov.f32 \1, \2"),
        everywhere(ptx, "scores masked one key late",
                   r"setp\.gt\.s32 (\t%p\d+, %r\d+, \d+;\s+selp\.f32)", r"setp.ge.s32 \1"),
        *mutants(ptx, "mask turned round", r"(selp\.f32 \t%f\d+, )(%f\d+), (0fFF800000)",
                 r"\1\3, \2"),
        *mutants(ptx, "loop turned round", r"@%p(\d+)( bra \t\$L__BB0_\d+;\n\n)", r"@!%p\1\2"),
    ]  # fmt: skip


def output_mutants(ptx: str) -> list[Mutant]:
    """The way of O and the log-sum-exp to global memory."""
    return [
        *dropped(ptx, "output through shared memory dropped", r"st\.shared\.b32"),
        *mutants(ptx, "output read at another place", r"(ld\.shared\.v4[^\[]*\[%r\d+)", r"\1+16"),
        *mutants(ptx, "guard of a store taken off", r"@p (st\.global)", r"\1"),
        *mutants(ptx, "guard of a store turned round", r"@p (st\.global)", r"@!p \1"),
        *mutants(ptx, "store at another place", r"(st\.global\.v4[^\[]*\[%rd\d+)", r"\1+16"),
    ]


def barrier_mutants(ptx: str) -> list[Mutant]:
    """Each barrier of the block, and of the warp, dropped; named by what it is for."""
    found = []
    for mutant, _, after in _dropped_between(ptx, r"bar\.sync"):
        before_k = re.search(r"st\.shared\.v4|ldmatrix|bar\.sync", after)[0] == "st.shared.v4"
        kind = "barrier before K is overwritten dropped" if before_k else "barrier dropped"
        found.append(replace(mutant, kind=kind))
    for mutant, before, _ in _dropped_between(ptx, r"bar\.warp\.sync"):
        staged = re.findall(r"ldmatrix|st\.shared", before)[-1] == "st.shared"
        kind = "warp barrier dropped" if staged else "fence between fragments dropped"
        found.append(replace(mutant, kind=kind))
    return found


def _dropped_between(ptx: str, pattern: str) -> list[tuple[Mutant, str, str]]:
    """Each mutant without a line, with the text before and after that line."""
    places = list(re.finditer(rf"^[ \t]*{pattern}[^;]*;", ptx, re.MULTILINE))
    found = dropped(ptx, "", pattern)
    return [(m, ptx[: p.start()], ptx[p.end() :]) for m, p in zip(found, places, strict=True)]


def copy_mutants(ptx: str, holds_q: bool) -> list[Mutant]:
    """Asynchronous copies, their groups, and the swizzle of where they go."""
    commits = dropped(ptx, "commit dropped", r"cp\.async\.commit_group")
    if not holds_q:
        commits[0] = replace(commits[0], kind="commit of Q dropped, Q not held")
    return [
        *commits,
        *dropped(ptx, "wait for copies dropped", r"cp\.async\.wait_group"),
        *mutants(ptx, "wait for copies weakened", r"cp\.async\.wait_group 0",
                 "cp.async.wait_group 1"),
        *dropped(ptx, "copy dropped", r"cp\.async\.cg"),
        *mutants(ptx, "copy of half the bytes", r"(cp\.async\.c)g(\.[^,]*, \[[^,]*, )16",
                 r"\1a\g<2>8"),
        *mutants(ptx, "copy to another place", r"(cp\.async\.cg[^\[]*\[%r\d+)", r"\1+16"),
        *mutants(ptx, "copy from another place", r"(cp\.async\.cg[^\[]*\[%r\d+\], \[%rd\d+)",
                 r"\1+16"),
        *mutants(ptx, "zeros turned round", r"(selp\.b32 \t%r\d+), 16, 0", r"\1, 0, 16"),
        everywhere(ptx, "one row too many copied",
                   r"setp\.lt\.s32 (\t%p\d+, %r\d+, %r\d+;\s+selp\.b32 \t%r\d+, 16, 0)",
                   r"setp.le.s32 \1"),
        *mutants(ptx, "swizzle lost", rf"xor\.b32  \t{REG}, {REG}, (%r\d+)", r"mov.b32 \1, \2"),
        *mutants(ptx, "swizzle of another step", rf"xor\.b32  \t{REG}, {REG}, (32|64|96)",
                 r"add.u32 \1, \2, \3"),
        *mutants(ptx, "swizzle mask", rf"and\.b32  \t{REG}, {REG}, 7;", r"and.b32 \1, \2, 3;"),
    ]  # fmt: skip


def everywhere(ptx: str, kind: str, pattern: str, replacement: str) -> Mutant:
    """One mutant with every match changed: on one problem, few of them meet the bound."""
    changed, count = re.subn(pattern, replacement, ptx)
    assert count, f"{kind}: nothing matches {pattern!r}"
    return Mutant(kind, f"all {count} places", changed)


def all_mutants(kernel: MmaKernel) -> list[Mutant]:
    """Every mutant of a kernel."""
    ptx = kernel.ptx
    found = [
        *barrier_mutants(ptx),
        *product_mutants(ptx),
        *softmax_mutants(ptx),
        *output_mutants(ptx),
    ]
    if "cp.async" in ptx:
        found += copy_mutants(ptx, holds_q=kernel is EAGER)
    return found


def chosen_mutants(kernel: MmaKernel) -> list[Mutant]:
    """All mutants of synchronisation, and two of every other kind."""
    whole, rest = [], []
    for mutant in all_mutants(kernel):
        is_order = re.search("barrier|wait|commit|fence", mutant.kind)
        (whole if is_order else rest).append(mutant)
    return thinned(whole, most=EVERY_PLACE, once=EQUIVALENT) + thinned(rest, most=2)


KERNELS = [EAGER, PLAIN, FULL]


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_the_unchanged_kernel_is_right_and_never_reported(kernel):
    verdict = judge(kernel.ptx, kernel.run, bool, range(6))
    assert not verdict.noticed, verdict


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_every_mutant_is_noticed_or_proved_equivalent(kernel):
    missed = []
    for mutant in chosen_mutants(kernel):
        verdict = judge(mutant.ptx, kernel.run, bool)
        if verdict.noticed == (mutant.kind in EQUIVALENT):
            missed.append(f"{mutant} {verdict}")
    assert not missed, "\n".join(missed)


def test_there_are_more_than_twenty_kinds():
    kinds = {mutant.kind for kernel in KERNELS for mutant in all_mutants(kernel)}
    assert len(kinds) > 30
    assert kinds > EQUIVALENT.keys()
