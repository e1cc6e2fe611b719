"""Mutants of gradients in five products: of barriers, handovers and the order of sums."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache

import pytest
from mutation import Mutant, dropped, judge, mutants, thinned
from test_backward_mutants import OneChanged

from flashsmith.check.cases import Case, inputs_of
from flashsmith.check.tolerance import distance, expectation_of
from flashsmith.compile.compiler import compile_ptx
from flashsmith.emulator.options import EmulatorOptions
from flashsmith.kernels.parse import parse_config
from flashsmith.kernels.plans import kernels_of, plan
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.signature import signature_of
from flashsmith.runtime.emulated import EmulatedDevice
from flashsmith.runtime.run import run_arrays
from flashsmith.runtime.tensors import numbers_of

KERNEL = "sm80_backward_blocks"
CONFIGS = [
    parse_config("bwd_sums(BF16, 64, 64, 64, 4): roles+buffer"),
    parse_config("bwd_sums(BF16, 64, 64, 64, 4): rounds"),
]
# Three kv blocks and q tiles with ragged tails, two heads of rows for one of keys. The diagonal
# hides the first q tile of every kv block from half of the warps.
CAUSAL = {"causal": True, "diagonal": -40}
CASE = Case(
    "mutants", AttentionProblem(1, 2, 1, 128 + 53, 128 + 29, 64, operation="backward", **CAUSAL)
)
EQUIVALENT = {
    "fence between fragments dropped": "no lane reads what another lane of its warp wrote between "
    "two of these: they keep the compiler from loading all fragments first, nothing else",
    "barrier of lanes that add dropped": "the emulator moves the lanes of a warp together here",
}


class Poisoned(OneChanged):
    """Scratch memory holds NaN before every call: what is not written must not be read."""

    @property
    def sm_count(self) -> int:
        """Fewer than kv blocks."""
        return 2

    def scratch(self, n_bytes: int, stream: int = 0) -> int:
        address = super().scratch(n_bytes, stream)
        self.fill(address, 0xFFFFFFFF, n_bytes // 4)
        return address


@cache
def original(whole) -> str:
    for config, needs in kernels_of(whole, CASE.problem):
        if config.NAME == KERNEL:
            return compile_ptx(config, needs, "sm_90a").ptx
    raise AssertionError


def run(whole, ptx: str, options: EmulatorOptions) -> bytes:
    """The sums of dQ in float32, whose bits follow from their order; none of a wrong gradient."""
    options = replace(options, mma_in_order=True, ordered_sums=True)
    device = Poisoned(f"flashsmith_{KERNEL}_", ptx, options)
    found = run_arrays(device, whole, CASE.problem, inputs_of(CASE))
    expected = expectation_of(CASE)
    if not all(
        distance(r.name, expected[r.name], numbers_of(r, found[r.name], CASE.problem)).ok
        for r in signature_of(CASE.problem).outputs(CASE.problem)
    ):
        return b""
    launch = plan(whole, CASE.problem, sm_count=device.sm_count)[1]
    begin, end = launch.sums.place, launch.sums.counters
    address = EmulatedDevice.scratch(device, launch.scratch_bytes)
    return device.download(address + begin, end - begin).tobytes()


@cache
def right_sums(whole) -> bytes:
    return run(whole, original(whole), EmulatorOptions())


def warp_barriers(ptx: str) -> list[Mutant]:
    """Between fragments, around sums, and of gradients that are staged."""
    pattern = r"bar\.warp\.sync"
    found = []
    places = re.finditer(rf"^[ \t]*{pattern}[^;]*;", ptx, re.MULTILINE)
    for mutant, place in zip(dropped(ptx, "", pattern), places, strict=True):
        behind = re.search(r"ldmatrix|red\.|st\.release|ld\.shared", ptx[place.end() :])[0]
        kind = "fence between fragments dropped"
        if behind in ("red.", "st.release"):
            kind = "barrier of lanes that add dropped"
        elif behind == "ld.shared":
            kind = "warp barrier of staged rows dropped"
        found.append(replace(mutant, kind=kind))
    return found


def order_mutants(whole, ptx: str) -> list[Mutant]:
    """What orders one warp, or one cta, after another, and where sums go."""
    found: list[Mutant] = []
    if whole.roles:
        found += dropped(ptx, "P or turn not handed over", r"bar\.arrive")
        found += dropped(ptx, "P or turn not awaited", r"bar\.sync %r")
    if whole.rounds:
        found += mutants(
            ptx, "sum of another lane", r"(ld\.global\.v4\.f32[^\[]*\[%rd\d+)", r"\1+16"
        )
    else:
        # Everywhere: a single one changes bits only where two sums happen to change places. With
        # `rounds` one block fewer adds, and none does.
        for name, weak in (("st.release", "st.relaxed"), ("ld.acquire", "ld.relaxed")):
            weakened = ptx.replace(f"{name}.gpu", f"{weak}.gpu")
            found.append(Mutant("flag without order", name, weakened))
    polls = re.compile(r"(ld\.acquire\.gpu(?:[^;]*;){3}\s*)@%p\d+ bra[^;]*;")
    assert polls.search(ptx)
    return [
        *found,
        Mutant("turns not awaited", "bra", polls.sub(r"\1", ptx)),
        *dropped(ptx, "barrier dropped", r"bar\.sync 0"),
        *warp_barriers(ptx),
        *dropped(ptx, "commit dropped", r"cp\.async\.commit_group"),
        *dropped(ptx, "wait for copies dropped", r"cp\.async\.wait_group"),
        *dropped(ptx, "flag not set", r"@p st\.release\.gpu"),
        *mutants(ptx, "first sum added, not stored", r"st\.global\.v4\.f32",
                 "red.global.add.v4.f32"),
        *mutants(ptx, "dS at another place", r"(st\.shared\.b32[^\[]*\[%r\d+)", r"\1+4"),
        *mutants(ptx, "sum at another place", r"(red\.global\.add\.v4\.f32 \[%rd\d+)", r"\1+16"),
    ]  # fmt: skip


@pytest.mark.parametrize("whole", CONFIGS, ids=str)
def test_the_unchanged_kernel_is_right_and_never_reported(whole):
    assert right_sums(whole)
    verdict = judge(
        original(whole),
        lambda ptx, options: run(whole, ptx, options),
        lambda sums: sums == right_sums(whole),
        range(3),
    )
    assert not verdict.noticed, verdict


@pytest.mark.parametrize("whole", CONFIGS, ids=str)
def test_every_mutant_is_noticed_or_proved_equivalent(whole):
    missed = []
    for mutant in thinned(order_mutants(whole, original(whole)), most=2, once=EQUIVALENT):
        verdict = judge(
            mutant.ptx,
            lambda ptx, options: run(whole, ptx, options),
            lambda sums: sums == right_sums(whole),
        )
        if verdict.noticed == (mutant.kind in EQUIVALENT):
            missed.append(f"{mutant} {verdict}")
    assert not missed, "\n".join(missed)
