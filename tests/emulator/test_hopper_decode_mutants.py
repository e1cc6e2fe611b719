"""Mutants of the decode kernel with TMA: of its boxes, barriers and pages; each is noticed."""

from dataclasses import replace

import numpy as np
import pytest
from mutation import dropped, judge, mutants, thinned
from test_decode_mutants import LENGTHS, Changed, changed_source

from flashsmith.check.cases import Case, inputs_of
from flashsmith.check.tolerance import distance, expectation
from flashsmith.compile.compiler import compile_ptx
from flashsmith.kernels.parse import parse_config
from flashsmith.kernels.plans import needs_of
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.signature import signature_of
from flashsmith.runtime.run import run_arrays
from flashsmith.runtime.tensors import numbers_of

ONE = parse_config("hopper_decode(FP16, 64, 16, 16, 2): slice_128+most_32+stages_3+ctas_2")
CONFIG = replace(ONE, persistent=True)  # ctas that take several slices each, through one ring
PROBLEM = AttentionProblem(
    *(3, 6, 2, 2, 300, 64, CONFIG.dtype), causal=True, lse=True, k_lengths=True, page=8, pages=90
)
COPIES = "sm90/decode/copies.cuh"
# kind → what the emulator does not model, so that nothing of it shows
NOT_MODELLED = {
    "proxy fence dropped": "copies by TMA are ordered behind plain stores to the same place",
}
# What is wrong, the text of the copies, and what stands there instead.
SOURCES = {
    "page off by one": ("first + page_of(key)", "first + page_of(key) + 1"),
    "page of another sequence": ("static_cast<i64>(batch_) *", "static_cast<i64>(0) *"),
    "row of a page off by one": ("from.row -= page_of", "from.row -= 1 + page_of"),
    "second page in the place of the first": ("+ row_ * kPanelRowBytes", ""),
    "K in the place of V": ("(to, args_.v_map, from", "(to, args_.k_map, from"),
    "stage of the block before": ("(blocks_ + block) %", "(blocks_ + block + 1) %"),
    "parity stays": ("if (stage == kStages - 1) parity_ ^= 1;", ""),
    "ring begins anew with every work": ("return {blocks_ + blocks};", "return {blocks_};"),
    "too few bytes are waited for": ("full, 2 * Tile::kBytes)", "full, Tile::kBytes)"),
    "rows behind the end are left": ("first_key + Kernel::kBc > end_key_", "false"),
    "a row before the end is cleared": ("end_key_ - first_key, 0)", "end_key_ - first_key - 1, 0)"),
}


def inputs():
    """What no sequence uses of the pool is not a number."""
    given = dict(inputs_of(Case("mutants", PROBLEM)))
    table = np.arange(3 * 38, dtype=np.int32).reshape(3, 38) % 90
    table[2] = table[2][::-1]
    given["block_table"] = table.view(np.uint32)
    given["k_lengths"] = np.array(LENGTHS, np.int32).view(np.uint32)
    used = np.zeros((90, 8), bool)
    for sequence, length in enumerate(LENGTHS):
        for key in range(length):
            used[table[sequence, key // 8], key % 8] = True
    for name in "kv":
        given[name] = given[name].copy()
        given[name][~used] = 0x7E00
    return given


GIVEN = inputs()
TRUTH = expectation(PROBLEM, GIVEN)


def run(ptx, options):
    found = run_arrays(Changed(ptx, options), CONFIG, PROBLEM, GIVEN)
    return all(
        distance(r.name, TRUTH[r.name], numbers_of(r, found[r.name], PROBLEM)).ok
        for r in signature_of(PROBLEM).outputs(PROBLEM)
    )


@pytest.mark.parametrize("kind", SOURCES)
def test_a_wrong_box_page_or_barrier_is_noticed(kind):
    ptx = changed_source(COPIES, *SOURCES[kind], problem=PROBLEM, config=CONFIG)
    assert judge(ptx, run, bool, range(2)).noticed


WAIT = r"mbarrier\.try_wait\.parity[^;]*p, ([^;]*);"


def order_mutants(ptx):
    return [
        *dropped(ptx, "warp barrier dropped", r"bar\.warp\.sync"),
        *dropped(ptx, "proxy fence dropped", r"fence\.proxy\.async"),
        *mutants(ptx, "copy dropped", r"^[ \t]*cp\.async\.bulk\.tensor[^;]*;", ""),
        *mutants(ptx, "wait passes", WAIT, "setp.eq.u32 p, 0, 0;"),
    ]


def test_every_mutant_of_the_order_is_noticed_or_not_modelled():
    ptx = compile_ptx(CONFIG, needs_of(CONFIG, PROBLEM), "sm_90a").ptx
    assert not judge(ptx, run, bool, range(3)).noticed
    missed = []
    for mutant in thinned(order_mutants(ptx), most=5):
        verdict = judge(mutant.ptx, run, bool)
        if verdict.noticed == (mutant.kind in NOT_MODELLED):
            missed.append(f"{mutant} {verdict}")
    assert not missed, "\n".join(missed)
