"""Mutants of `kept_parts`: which lines of scratch memory are dropped, by whom and when."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache, partial

import numpy as np
import pytest
from mutation import judge
from test_decode_mutants import ARCH, CONFIG, Changed, changed_source

from flashsmith.check.cases import Case, inputs_of
from flashsmith.compile.compiler import compile_ptx
from flashsmith.emulator.options import EmulatorOptions
from flashsmith.kernels.plans import needs_of, plan
from flashsmith.problem.attention import AttentionProblem
from flashsmith.runtime.run import run_arrays

# No slice, 19, one of two, three, six and one: all have room for 19. Of two q tiles the last has
# two rows.
PROBLEM = AttentionProblem(6, 6, 2, 6, 2400, 64, CONFIG.dtype, lse=True, k_lengths=True)
LENGTHS = np.array((0, 2391, 130, 300, 700, 17), np.int32)
INPUTS = {**inputs_of(Case("kept", PROBLEM)), "k_lengths": LENGTHS.view(np.uint32)}
UNTOUCHED, LOST = 0x7FC0BEEF, 0xFFFFFFFF  # two that are not numbers
KINDS = {
    "one by one": CONFIG,
    "weighed": replace(CONFIG, quick_end=True),
    "runs": replace(CONFIG, quick_end=True, runs=True),
}
QUICK = KINDS["weighed"]


class Marked(Changed):
    """Scratch memory holds a word that no kernel writes before every call."""

    def scratch(self, n_bytes: int, stream: int = 0) -> int:
        address = super().scratch(n_bytes, stream)
        self.fill(address, UNTOUCHED, n_bytes // 4)
        return address

    def words_left(self, n_bytes: int) -> np.ndarray:
        """What the last call left in scratch memory."""
        return self.download(super().scratch(n_bytes), n_bytes).view(np.uint32)


def left_by(ptx, config, options, sm_count):
    """O, LSE, and in scratch memory statistics of slices and their parts, as words."""
    device = Marked(ptx, replace(options, mma_in_order=True), sm_count)
    found = run_arrays(device, config, PROBLEM, INPUTS)
    (launch,) = plan(config, PROBLEM, sm_count=sm_count)
    words = device.words_left(launch.scratch_bytes)
    parts, statistics = np.split(words, [words.size * 64 // 66])
    return found["o"], found["lse"], statistics, parts


def ptx_of(config):
    return compile_ptx(config, needs_of(config, PROBLEM), ARCH).ptx


def is_hinted(ptx):
    """Whether all parts are stored as what L2 drops last, and nothing else is."""
    policies = re.findall(r"createpolicy\.fractional\.L2::evict_last\.b64 (%rd\d+);", ptx)
    hints = re.findall(r"st\.global\.L2::cache_hint\.v4\.f32 [^;]*\}, (%rd\d+);", ptx)
    return bool(hints) and set(hints) <= set(policies) and "st.global.v4.f32" not in ptx


def is_right(config, before, ptx, options):
    """Whether parts are stored with a hint, bits are those of `before`, and parts alone are lost.

    `before`: what the same kernel leaves that keeps no parts.
    """
    options = replace(options, checks=False)
    for sm_count in (1, 3):
        *same, parts = before
        *found, lost = left_by(ptx, config, options, sm_count)
        alone = np.where(parts == UNTOUCHED, UNTOUCHED, LOST)
        if not all(map(np.array_equal, (*same, alone), (*found, lost))):
            return False
    return is_hinted(ptx)


# What is wrong, the header, its text and what stands there instead.
SOURCES = {
    "no hint": ("/output.cuh", "st_global_f32x4_kept(to, o)", "st_global_f32x4(to, o)"),
    "before all have read": ("/output.cuh", "ptx::bar_sync();  // all parts have been read", ""),
    "by those that do not come last": (
        "weighed_output.cuh",
        "if (work_.slices == 1 || !this->comes_last(count)) return;",
        "if (work_.slices == 1) return; if (!this->comes_last(count)) {"
        " this->drop_parts(*this); return; }",
    ),
    "nothing": ("/output.cuh", "i < work_.slices * kLines", "i < 0"),
    "the next row": ("/output.cuh", "part_at(i / kLines, row)", "part_at(i / kLines, row + 1)"),
    "all but the first row": (
        "/output.cuh",
        "u32 row = 0; row < rows_",
        "u32 row = 1; row < rows_",
    ),
    "rows behind the last": ("/output.cuh", "0; row < rows_;", "0; row < Kernel::kBr;"),
    "a slice more": ("/output.cuh", "i < work_.slices * kLines", "i < (work_.slices + 1) * kLines"),
    "slices that others have": (
        "/output.cuh",
        "i < work_.slices * kLines",
        "i < args_.slices * kLines",
    ),
    "the next line": ("/output.cuh", "i % kLines * kLine", "(i % kLines + 1) * kLine"),
    "a line more of each row": ("/output.cuh", "kLines = kD / kLine", "kLines = kD / kLine + 1"),
}


@pytest.mark.parametrize("config", KINDS.values(), ids=KINDS)
def test_parts_that_stay_in_l2_give_the_same_bits_and_they_alone_are_dropped(config):
    plain, kept = ptx_of(config), replace(config, kept_parts=True)
    assert not is_hinted(plain)
    before = left_by(plain, config, EmulatorOptions(), 3)
    assert (before[-1] == UNTOUCHED).any()
    right = partial(is_right, kept, before)
    seeds = range(1 if config == QUICK else 0)  # on one schedule that is drawn, too
    assert not judge(ptx_of(kept), right, bool, seeds).noticed


@cache
def left_by_quick():
    return left_by(ptx_of(QUICK), QUICK, EmulatorOptions(), 3)


@pytest.mark.parametrize("kind", SOURCES)
def test_what_is_dropped_wrongly_is_noticed(kind):
    kept = replace(QUICK, kept_parts=True)
    ptx = changed_source(*SOURCES[kind], PROBLEM, kept)
    assert judge(ptx, partial(is_right, kept, left_by_quick()), bool, range(4)).noticed
