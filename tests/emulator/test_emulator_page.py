"""The emulator's pages show the committed records, and these know every kind of mutant."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import emulator_mutants
import emulator_speed

ROOT = Path(__file__).parents[2]


def test_the_table_of_mutants_is_the_one_the_record_gives():
    assert emulator_mutants.page_table() == emulator_mutants.table(emulator_mutants.read_record())


def test_the_record_knows_every_kind_of_mutant_and_no_other():
    recorded = {record["kind"] for record in emulator_mutants.read_record()}
    made = {m.kind for _, found in emulator_mutants.kernels().values() for m in found}
    assert recorded == made, "run benchmarks/emulator_mutants.py again"


def test_what_the_record_missed_is_proved_equivalent():
    for record in emulator_mutants.read_record():
        noticed = record["noticed"].keys() - {"not noticed"}
        is_equivalent = record["kind"] in emulator_mutants.EQUIVALENT
        assert bool(noticed) != is_equivalent, record
        assert is_equivalent or "not noticed" not in record["noticed"], record


def test_the_table_of_speeds_is_the_one_the_record_gives():
    assert emulator_speed.page_table() == emulator_speed.table(emulator_speed.newest_records())


@pytest.mark.parametrize("what", emulator_speed.GOALS)
def test_the_recorded_speed_meets_its_goal(what):
    found = [r for r in emulator_speed.newest_records() if r["what"] == what]
    assert found
    assert all(record["cpu_s"] < emulator_speed.GOALS[what] for record in found)
    assert all(record["peak_mb"] < 1024 for record in found)


def test_the_page_counts_the_mutants_of_the_record():
    page = " ".join((ROOT / "docs" / "emulator.md").read_text(encoding="utf-8").split())
    kinds: dict[str, int] = {}
    for record in emulator_mutants.read_record():
        places = sum(record["noticed"].values())
        kinds[record["kind"]] = kinds.get(record["kind"], 0) + places
    same = kinds.keys() & emulator_mutants.EQUIVALENT.keys()
    mutants = sum(places for kind, places in kinds.items() if kind not in same)
    noticed = len(kinds) - len(same)
    assert f"Of {len(kinds)} kinds of change {noticed} are noticed wherever they were made" in page
    assert f"({mutants} mutants); the other {len(same)} are proved to change nothing" in page
