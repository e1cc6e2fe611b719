"""The survey: a row a configuration and architecture, reasons for what does not fit, aliases."""

import pytest

from flashsmith import arch as arches
from flashsmith.base.errors import CompilerMissing
from flashsmith.compile import artefact
from flashsmith.compile.ahead_of_time.registry import GENERAL
from flashsmith.compile.survey import survey
from flashsmith.kernels.parse import parse_config
from flashsmith.kernels.rules import Refusal
from flashsmith.measure.facts import facts_of, small_problem
from flashsmith.problem.needs import Needs
from flashsmith.tuner.run.candidates import Candidate, artefact_facts

PLAIN = Needs()
SM_80, SM_86 = arches.get("sm_80"), arches.get("sm_86")


def test_each_architecture_has_a_row_with_figures_or_the_reason(cache, small, large):
    rows = survey([small, large], PLAIN, [SM_80, SM_86], cache=cache)
    assert [(row.config, row.arch.name) for row in rows] == [
        (small, "sm_80"),
        (large, "sm_80"),
        (small, "sm_86"),
        (large, "sm_86"),
    ]
    assert [row.kernel is not None for row in rows] == [True, True, True, False]
    flat = rows[0].as_flat()
    assert flat["registers"] > 32
    assert flat["spill_bytes"] == 0
    assert flat["smem_bytes"] == small.smem_bytes()
    assert flat["blocks_per_sm"] >= 2
    assert flat["compile_s"] > 0
    assert "131,072 bytes of shared memory" in rows[3].as_flat()["note"]
    assert not rows[3].failed


def test_spill_bytes_are_stores_and_loads_wherever_they_are_shown():
    spilling = parse_config("(FP16, 128, 128, 64, 4): async+eager+swizzled+load_2_2_2_tiles")
    (row,) = survey([spilling], PLAIN, [SM_80])
    used = row.kernel.resources
    assert min(used.spill_store_bytes, used.spill_load_bytes) > 0
    spilled = used.spill_store_bytes + used.spill_load_bytes
    assert row.as_flat()["spill_bytes"] == spilled
    assert facts_of(spilling, "sm_80").spill_bytes == spilled
    problem = small_problem(spilling)
    assert artefact_facts(Candidate(spilling, problem, (row.kernel,)))["spill_bytes"] == spilled


def test_a_configuration_that_no_compiler_could_build_says_so_without_a_compile(cache, small):
    (row,) = survey([small.replace(async_copy=False)], PLAIN, [SM_80], cache=cache)
    assert row.kernel is None
    assert "eager" in row.reason
    assert not cache.root.exists()


def test_equal_machine_code_names_the_first_that_has_it(cache, small, monkeypatch):
    # The element type stays in the machine code; a hash that is blind to it makes them aliases.
    monkeypatch.setattr(artefact, "code_hash", lambda cubin: "same")
    other = small.replace(mma_double_buffer_loads=True)
    first, second = survey([small, other], PLAIN, [SM_80], cache=cache)
    assert first.same_as is None
    assert second.same_as == small
    assert second.as_flat()["same_as"] == small.short_form()


def test_configurations_of_unlike_machine_code_are_no_aliases(cache, small):
    rows = survey([small, small.replace(swizzled=False)], PLAIN, [SM_80], cache=cache)
    assert [row.same_as for row in rows] == [None, None]


def test_a_unit_that_does_not_compile_is_a_row_that_says_why(cache, small, monkeypatch):
    monkeypatch.setattr(type(small), "CPP_ENTRY", "flashsmith::no_such_kernel")
    (row,) = survey([small], PLAIN, [SM_80], cache=cache)
    assert row.failed
    assert "no_such_kernel" in row.reason


def test_a_build_that_the_family_refuses_is_a_row_with_the_reason(cache, small, monkeypatch):
    refusal = Refusal("spills", "ptxas spills 8 bytes", "lower B_c")
    monkeypatch.setattr(type(small), "refused_build", lambda self, spills, warnings: refusal)
    (row,) = survey([small], PLAIN, [SM_80], cache=cache)
    assert (row.kernel, row.reason) == (None, "ptxas spills 8 bytes; lower B_c.")
    assert not row.failed


def test_a_missing_compiler_is_no_property_of_a_row(cache, small, monkeypatch):
    monkeypatch.setenv("FLASHSMITH_NVRTC", "/nowhere/libnvrtc.so")
    with pytest.raises(CompilerMissing, match="FLASHSMITH_NVRTC"):
        survey([small], PLAIN, [SM_80], cache=cache)


def test_progress_counts_what_is_compiled(cache, small, large):
    seen = []
    survey(
        [small, large],
        PLAIN,
        [SM_86],
        progress=lambda done, total: seen.append((done, total)),
        cache=cache,
    )
    assert seen == [(1, 1)]


@pytest.mark.parametrize("traits", [PLAIN, GENERAL], ids=["plain", "general"])
def test_a_kernel_compiles_for_every_architecture(cache, small, traits):
    rows = survey([small], traits, arches.ARCHES, cache=cache)
    assert [row.kernel.arch for row in rows] == [arch.name for arch in arches.ARCHES]
    assert all(row.kernel.resources.spill_bytes == 0 for row in rows)
