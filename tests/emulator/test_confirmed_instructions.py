"""The emulator goes on computing what a GPU computed: every recorded class, bit for bit."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import pytest

from flashsmith.compile.compiler import compile_text
from flashsmith.runtime.emulated import EmulatedDevice

ROOT = Path(__file__).parents[2]
RECORDS = ROOT / "benchmarks" / "results" / "h200" / "instructions.jsonl"
sys.path.insert(0, str(ROOT / "benchmarks"))

from confirm_instructions import run_case, table  # noqa: E402
from instruction_cases import all_cases  # noqa: E402

CASES = {case.name: case for case in all_cases()}
CONFIRMED = {
    record["class"]: record
    for record in map(json.loads, RECORDS.read_text().splitlines())
    if record["verdict"] == "confirmed"
}


def test_every_class_has_a_record_of_a_gpu():
    assert CASES.keys() == CONFIRMED.keys()


@pytest.mark.parametrize("name", [name for name, r in CONFIRMED.items() if "sha256" in r])
def test_the_emulator_computes_the_bits_the_gpu_computed(name):
    case = CASES[name]
    kernel = compile_text(case.source, case.entry, "sm_90a")
    out = run_case(EmulatedDevice(), kernel, case)
    assert hashlib.sha256(out.tobytes()).hexdigest() == CONFIRMED[name]["sha256"]


def test_classes_without_equal_bits_are_sums_and_approximations_only():
    loose = {name for name, record in CONFIRMED.items() if "sha256" not in record}
    words = ("reals", "approx", "kernel: TMA", "float arithmetic", "conversions")
    assert all(any(word in name for word in words) for name in loose), loose


def test_the_page_shows_the_records():
    page = (ROOT / "docs" / "notebook" / "emulator.md").read_text()
    shown = page.split("<!-- confirmed: begin -->")[1].split("<!-- confirmed: end -->")[0]
    assert shown.strip() == table(RECORDS)


def test_the_page_counts_the_records():
    page = " ".join((ROOT / "docs" / "emulator.md").read_text().split())
    equal = sum("sha256" in record for record in CONFIRMED.values())
    assert f"Of {len(CONFIRMED)} classes {equal} have equal bits on an H200" in page
