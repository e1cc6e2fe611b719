"""Faults planted in every kernel family: the record says that quick cases found each of them."""

import json
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from flashsmith.check.cases import quick_cases
from flashsmith.compile.header_closure import INCLUDE_ROOT
from flashsmith.kernels import parse_config
from flashsmith.kernels.sm80_decode.plan import slices_of

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import plant_faults

FAULTS = plant_faults.FAULTS
KINDS = {"sequences", "rows without keys", "one key", "large scores"}


def test_every_family_has_a_fault_of_each_kind():
    kinds = defaultdict(set)
    for fault in FAULTS:
        kinds[fault.family].add(fault.kind)
    assert kinds == dict.fromkeys(plant_faults.FAMILIES, KINDS)
    for family, text in plant_faults.FAMILIES.items():
        assert type(parse_config(text)).__module__.split(".")[2] == family


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.family}-{fault.name}")
def test_a_fault_can_still_be_planted(fault):
    text = (INCLUDE_ROOT / "flashsmith" / fault.header).read_text(encoding="utf-8")
    assert text.count(fault.right) == 1, "correct benchmarks/plant_faults.py and run it again"


@pytest.mark.parametrize("family", ["sm80_decode", "sm90_decode"])
def test_slices_of_two_sequences_are_among_the_quick_cases(family):
    config = parse_config(plant_faults.FAMILIES[family])
    problems = [case.problem for case in quick_cases(config)]
    assert any(p.batch > 1 and slices_of(config, p.k_len)[1] > 1 for p in problems)


def test_the_quick_cases_found_every_fault_of_the_record():
    lines = plant_faults.RECORD.read_text(encoding="utf-8").splitlines()
    newest = {(line["family"], line["fault"]): line for line in map(json.loads, lines)}
    assert {(fault.family, fault.name) for fault in FAULTS} <= newest.keys()
    assert [line for line in newest.values() if not line["found_by"]] == []
