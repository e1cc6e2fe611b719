"""Mutants of `quick_start` and `quick_end`: where ctas begin, and how results are weighed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from mutation import judge
from test_decode_mutants import ARCH, CONFIG, LONG, Changed, bits_of_schedules, changed_source

from flashsmith.base.dtypes import from_bits, to_bits
from flashsmith.check.cases import Case, inputs_of
from flashsmith.check.tolerance import distance, expectation
from flashsmith.compile.compiler import compile_ptx
from flashsmith.emulator.options import EmulatorOptions
from flashsmith.kernels.plans import needs_of
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.signature import signature_of
from flashsmith.runtime.run import run_arrays
from flashsmith.runtime.tensors import numbers_of

QUICK = replace(CONFIG, quick_start=True, quick_end=True)
# One token, contiguous; one slice, three, and nineteen: more than are read at once.
ONE = AttentionProblem(3, 6, 2, 1, 2400, 64, CONFIG.dtype, lse=True, k_lengths=True)
LENGTHS = (100, 299, 2391)


def given():
    """Inputs; some keys weigh 2^200 times as much as those of the first team, and first slices."""
    found = dict(inputs_of(Case("quick", ONE)))
    found["k_lengths"] = np.array(LENGTHS, np.int32).view(np.uint32)
    k = from_bits(found["k"], CONFIG.dtype).reshape(found["k"].shape).copy()
    q = from_bits(found["q"], CONFIG.dtype).reshape(found["q"].shape)
    k[2, 2200:2230] = 40 * np.sign(q[2, 0, [0, 3]])
    k[1, 250:252] = 40 * np.sign(q[1, 0, [0, 3]])  # of slice 1, and of team 1
    return {**found, "k": to_bits(k, CONFIG.dtype)}


INPUTS = given()
EXPECTED = expectation(ONE, INPUTS)


def is_right(ptx, options):
    found = run_arrays(Changed(ptx, options), QUICK, ONE, INPUTS)
    return all(
        distance(r.name, EXPECTED[r.name], numbers_of(r, found[r.name], ONE)).ok
        for r in signature_of(ONE).outputs(ONE)
    )


SOURCES = {
    "slices taken for heads": (
        "decode/queue.cuh",
        "work.slice = ptx::ctaid_y()",
        "work.slice = ptx::ctaid_x()",
    ),
    "sequences taken for slices": (
        "decode/queue.cuh",
        "look_at(ptx::ctaid_z(), work)",
        "look_at(ptx::ctaid_y() % args_.batch, work)",
    ),
    "the head of the row before": (
        "decode/kernel.cuh",
        "return {0, work.kv_head * args.group + row}",
        "return {0, work.kv_head * args.group + max(row - 1, 0)}",
    ),
    "rows of K passed by": ("sm80/decode/copies.cuh", "k += kRowStep", "k += 2 * kRowStep"),
    "keys behind the end": (
        "sm80/decode/copies.cuh",
        "pass * kRowStep + row_ < end_key_",
        "0 == 0",
    ),
    "a row not handed over": (
        "decode/team.cuh",
        ">= end_row_of(work)) continue",
        ">= end_row_of(work) - 1) continue",
    ),
    "a slice too many": (
        "decode/weighed_output.cuh",
        "const bool exists = slice + i < work_.slices",
        "const bool exists = slice + i <= work_.slices",
    ),
    "a slice too few": (
        "decode/weighed_output.cuh",
        "const bool exists = slice + i < work_.slices",
        "const bool exists = slice + i < work_.slices - 1",
    ),
    "the largest maximum of the first slices alone": (
        "decode/weighed_output.cuh",
        "for (; slice < work_.slices; slice += kAhead)",
        "for (; slice < 0; slice += kAhead)",
    ),
    "the largest maximum left out": (
        "decode/weighed_output.cuh",
        "top = ptx::max(top, maximum[i]);",
        "top = maximum[0];",
    ),
    "parts of another row": (
        "decode/weighed_output.cuh",
        "(tile * args_.part_rows + row) * args_.slices",
        "tile * args_.part_rows * args_.slices",
    ),
}


@pytest.mark.parametrize("kind", [None, *SOURCES])
def test_every_mutant_is_noticed(kind):
    if kind is None:
        ptx = compile_ptx(QUICK, needs_of(QUICK, ONE), ARCH).ptx
    else:
        ptx = changed_source(*SOURCES[kind], ONE, QUICK)
    assert judge(ptx, is_right, bool, range(2)).noticed == (kind is not None)


# Judged: as many ctas as on a GPU run at a time, so that slices end in other orders.
@pytest.mark.judged
def test_no_schedule_and_no_number_of_sms_reaches_the_bits():
    found = set()
    for config in (QUICK, replace(QUICK, persistent=True), replace(QUICK, quick_start=False)):
        ptx = compile_ptx(config, needs_of(config, LONG), ARCH).ptx
        found |= set(bits_of_schedules(ptx, config))
    assert len(found) == 1


def test_a_quick_start_changes_no_bit():
    """Contiguous and paged, with one token and with several."""
    device_options = EmulatorOptions(checks=False, mma_in_order=True)
    for facts in (
        {},
        {"q_len": 3, "causal": True},
        {"k_lengths": False},
        {"page": 16, "pages": 450},
    ):
        problem = replace(ONE, **facts)
        inputs = dict(inputs_of(Case("same", problem)))
        found = [
            run_arrays(
                Changed(compile_ptx(c, needs_of(c, problem), ARCH).ptx, device_options),
                *(c, problem, inputs),
            )
            for c in (CONFIG, replace(CONFIG, quick_start=True))
        ]
        for name, bits in found[0].items():
            np.testing.assert_array_equal(bits, found[1][name])
