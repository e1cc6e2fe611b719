"""Mutants of the backward kernels: of their synchronisation and numbers; each is noticed."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cache

import pytest
from mutation import Mutant, dropped, judge, mutants, thinned

from flashsmith.check.cases import Case, inputs_of
from flashsmith.check.tolerance import distance, expectation_of
from flashsmith.compile.compiler import compile_ptx
from flashsmith.emulator.options import EmulatorOptions
from flashsmith.emulator.program import Program, load
from flashsmith.kernels.parse import parse_config
from flashsmith.kernels.plans import kernels_of
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.signature import signature_of
from flashsmith.runtime.emulated import EmulatedDevice
from flashsmith.runtime.run import run_arrays
from flashsmith.runtime.tensors import numbers_of

# kind → why a mutant of it computes the same on every schedule
EQUIVALENT = {
    "fence between fragments dropped": "no lane reads what another lane of its warp wrote between "
    "two of these: they keep the compiler from loading all fragments first, nothing else",
    "commit of the owned rows dropped": "their copies then belong to the group of the first tile, "
    "and the first wait is for both",
}
SIMPLE = "bwd(FP16, 64): dkv_64_32_4+dq_64_32_4"
BUFFERED = "bwd(FP16, 64): dkv_64_32_4+dq_64_32_4+dkv_buffer+dq_buffer"


class OneChanged(EmulatedDevice):
    """An emulator that runs another text in place of one kernel."""

    def __init__(self, name: str, ptx: str, options: EmulatorOptions) -> None:
        super().__init__(options=options)
        self._changed = (name, ptx)

    def _load(self, kernel: object) -> Program:
        name, ptx = self._changed
        return load(ptx) if kernel.name.startswith(name) else super()._load(kernel)


@dataclass(frozen=True)
class Part:
    """One kernel of a configuration, on three q tiles or kv blocks, a ragged tail and two heads."""

    name: str  # of the kernel
    short_form: str
    bias: bool = False  # whose gradient is wanted too: of two sequences that share it

    @property
    def config(self):
        return parse_config(self.short_form)

    @property
    def case(self) -> Case:
        problem = AttentionProblem(
            1, 2, 1, 64 + 21, 64 + 29, 64, self.config.dtype, causal=True, operation="backward"
        )
        if not self.bias:
            return Case("mutants", problem)
        shared = {"bias": "same", "bias_keys": "apart", "bias_shared": "batch", "dbias": True}
        return Case("mutants", replace(problem, batch=2, **shared), placement="transposed")

    @property
    def ptx(self) -> str:
        return _ptx(self)

    def run(self, ptx: str, options: EmulatorOptions) -> bool:
        """Whether all gradients are right."""
        case, problem = self.case, self.case.problem
        device = OneChanged(f"flashsmith_{self.name}_", ptx, options)
        found = run_arrays(device, self.config, problem, inputs_of(case))
        expected = expectation_of(case)
        return all(
            distance(r.name, expected[r.name], numbers_of(r, found[r.name], problem)).ok
            for r in signature_of(problem).outputs(problem)
        )


@cache
def _ptx(part: Part) -> str:
    for config, needs in kernels_of(part.config, part.case.problem):
        if part.name == config.NAME:
            return compile_ptx(config, needs, "sm_90a").ptx
    raise AssertionError(part)


PARTS = [
    Part("sm80_backward_dkv", SIMPLE),
    Part("sm80_backward_dkv", BUFFERED),
    Part("sm80_backward_dq", SIMPLE),
    Part("sm80_backward_dq", BUFFERED),
    Part("sm80_backward_dbias", BUFFERED, bias=True),
]
REG = r"(%[rf]\d+)"


def order_mutants(ptx: str, is_buffered: bool) -> list[Mutant]:
    """Every barrier, wait and commit, dropped; waits weakened."""
    commits = dropped(ptx, "commit dropped", r"cp\.async\.commit_group")
    if not is_buffered:
        commits[0] = replace(commits[0], kind="commit of the owned rows dropped")
    return [
        *dropped(ptx, "barrier dropped", r"bar\.sync"),
        *_warp_barriers(ptx),
        *commits,
        *dropped(ptx, "wait for copies dropped", r"cp\.async\.wait_group"),
        *mutants(ptx, "wait weakened", r"cp\.async\.wait_group 0", "cp.async.wait_group 1"),
    ]


def _warp_barriers(ptx: str) -> list[Mutant]:
    pattern = r"bar\.warp\.sync"
    places = re.finditer(rf"^[ \t]*{pattern}[^;]*;", ptx, re.MULTILINE)
    found = []
    for mutant, place in zip(dropped(ptx, "", pattern), places, strict=True):
        before = re.findall(r"ldmatrix|st\.shared", ptx[: place.start()])
        staged = before and before[-1] == "st.shared"
        kind = (
            "warp barrier of staged rows dropped" if staged else "fence between fragments dropped"
        )
        found.append(replace(mutant, kind=kind))
    return found


def number_mutants(ptx: str, of_bias: bool) -> list[Mutant]:
    """Products, fragments, statistics, masks and stores."""
    both = [
        *mutants(ptx, "ldmatrix transposed", r"(ldmatrix[^ ]*x4)\.shared", r"\1.trans.shared"),
        *mutants(ptx, "exponential lost", r"ex2\.approx\.ftz\.f32", "mov.f32"),
        *mutants(ptx, "delta lost", rf"sub\.rn\.f32 {REG}, {REG}, {REG}", r"mov.f32 \1, \2"),
        *mutants(ptx, "weight lost", rf"mul\.rn\.f32 {REG}, {REG}, {REG}", r"mov.f32 \1, \3"),
        *mutants(ptx, "copy dropped", r"^[ \t]*cp\.async\.cg[^;]*;", ""),
        *mutants(ptx, "copy to another place", r"(cp\.async\.cg[^\[]*\[%r\d+)", r"\1+16"),
    ]
    if of_bias:  # what is added: elements of the bias, and what one sequence gives after another
        added = rf"add\.f32 \t{REG}, {REG}, {REG}"
        return [
            *both,
            *mutants(ptx, "element or sum lost", added, r"mov.f32 \t\1, \2"),
            *mutants(ptx, "element of another key", r"(ld\.global\.u16[^\[]*\[%rd\d+)", r"\1+2"),
            *mutants(ptx, "store at another place", r"(st\.global\.f32[^\[]*\[%rd\d+)", r"\1+4"),
        ]
    return [
        *both,
        *mutants(ptx, "ldmatrix not transposed", r"(ldmatrix[^ ]*x4)\.trans", r"\1"),
        *mutants(ptx, "halves swapped in packing", rf"(cvt\.rn\.f16x2\.f32) {REG}, {REG}, {REG}",
                 r"\1 \2, \4, \3"),
        *mutants(ptx, "guard of a store taken off", r"@p (st\.global)", r"\1"),
        *mutants(ptx, "store at another place", r"(st\.global\.v4[^\[]*\[%rd\d+)", r"\1+16"),
    ]  # fmt: skip


def chosen(part: Part) -> list[Mutant]:
    """All mutants of synchronisation, and two of every other kind."""
    order = order_mutants(part.ptx, "buffer" in part.short_form)
    return thinned(order, most=8, once=EQUIVALENT) + thinned(
        number_mutants(part.ptx, part.bias), most=2
    )


@pytest.mark.parametrize("part", PARTS, ids=lambda part: f"{part.name} {part.short_form}")
def test_the_unchanged_kernel_is_right_and_never_reported(part):
    verdict = judge(part.ptx, part.run, bool, range(3))
    assert not verdict.noticed, verdict


@pytest.mark.parametrize("part", PARTS, ids=lambda part: f"{part.name} {part.short_form}")
def test_every_mutant_is_noticed_or_proved_equivalent(part):
    missed = []
    for mutant in chosen(part):
        verdict = judge(mutant.ptx, part.run, bool)
        if verdict.noticed == (mutant.kind in EQUIVALENT):
            missed.append(f"{mutant} {verdict}")
    assert not missed, "\n".join(missed)


def test_the_guard_of_rows_that_see_nothing_is_missed():
    """A bias hides all keys from some rows, whose LSE is -inf: without it their P is no number."""
    part = Part("sm80_backward_delta", SIMPLE, bias=True)
    pattern = r"(setp\.eq\.f32[^;]*)0fFF800000"
    (mutant,) = mutants(part.ptx, "guard taken off", pattern, r"\g<1>0f7F800000")
    assert part.run(part.ptx, EmulatorOptions())
    assert not part.run(mutant.ptx, EmulatorOptions())
