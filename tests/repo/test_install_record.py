"""The READMEs say of an installation what its record says."""

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("name", "whole", "installing"),
    [
        ("README.md", "{} s in a fresh environment", "{} s of them"),
        ("README.zh-CN.md", "{} 秒，", "{} 秒用"),
    ],
)
def test_the_seconds_from_a_wheel_to_an_output_are_those_of_the_record(name, whole, installing):
    lines = (ROOT / "benchmarks/results/host/install.jsonl").read_text().splitlines()
    newest = json.loads(lines[-1])["result"]
    page = (ROOT / name).read_text(encoding="utf-8")
    assert whole.format(round(newest["whole_s"])) in page
    assert installing.format(round(newest["install_s"])) in page
    assert newest["rounds"] >= 3
