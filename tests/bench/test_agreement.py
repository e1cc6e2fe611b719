"""Two runs of a benchmark: every ratio that both have, within the spread that they state."""

import json
from dataclasses import asdict

import pytest
from typer.testing import CliRunner

from flashsmith.bench.agreement import agreements
from flashsmith.cli.main import app
from flashsmith.measure.environment import environment_of
from flashsmith.measure.record import Record, append_records
from flashsmith.runtime.emulated import EmulatedDevice

ENVIRONMENT = asdict(environment_of(EmulatedDevice("sm_90a")))
WHAT = {"suite": "quick", "batch": 3, "heads": 3, "kv_heads": 3, "q_len": 1000, "k_len": 1000}
WHAT |= {"d_head": 128, "causal": True, "dtype": "BF16"}


def record(name, ratio, low, high, *, control=1.0, regime="burst", date="2026-11-15"):
    return Record(
        {**WHAT, "name": name},
        {
            "regime": regime,
            "median_us": 100.0,
            "ratio": ratio,
            "ratio_p20": low,
            "ratio_p80": high,
            "control": control,
            "void": abs(control - 1) > 0.01,
        },
        {**ENVIRONMENT, "date": date},
    )


BEFORE = record("cuDNN", 0.80, 0.79, 0.81)


@pytest.mark.parametrize(
    ("after", "agrees"),
    [
        (record("cuDNN", 0.82, 0.805, 0.84), True),
        (record("cuDNN", 0.83, 0.815, 0.84), False),
        (record("cuDNN", 0.83, 0.815, 0.84, control=0.993), True),
        (record("cuDNN", 0.80, 0.79, 0.81, control=1.02), False),
        (record("cuDNN", 0.77, 0.76, 0.785), False),
    ],
    ids=["overlap", "apart", "control off by as much", "void", "below"],
)
def test_ratios_agree_where_their_intervals_meet(after, agrees):
    (found,) = agreements([BEFORE], [after])
    assert found.agrees is agrees
    (turned,) = agreements([after], [BEFORE])
    assert turned.agrees is agrees


def test_only_the_newest_of_the_same_contender_regime_and_suite_is_compared():
    newer = record("cuDNN", 0.9, 0.89, 0.91, date="2026-11-16")
    (found,) = agreements([newer, BEFORE], [newer])
    assert found.before.ratio == 0.9
    assert not agreements([BEFORE], [record("efficient", 0.8, 0.79, 0.81)])
    assert not agreements([BEFORE], [record("cuDNN", 0.8, 0.79, 0.81, regime="sustained")])
    assert not agreements(
        [record("flashsmith", 1.0, 1.0, 1.0)] * 2, [record("flashsmith", 1, 1, 1)]
    )


def test_diff_of_two_records_says_whether_every_ratio_agrees(tmp_path):
    first, second, third = (tmp_path / f"{n}.jsonl" for n in range(3))
    append_records(first, [BEFORE, record("GEMM", 0.3, 0.299, 0.301)])
    append_records(second, [record("cuDNN", 0.82, 0.805, 0.84), record("GEMM", 0.4, 0.4, 0.4)])
    append_records(third, [record("cuDNN", 0.9, 0.89, 0.91)])
    ran = CliRunner().invoke(app, ["results", "diff", str(first), str(second), "--json"])
    (row,) = json.loads(ran.stdout)
    assert (row["contender"], row["before_ratio"], row["after_high"]) == ("cuDNN", 0.8, 0.84)
    assert "1 ratios that both runs have: every ratio agrees" in ran.stderr
    ran = CliRunner().invoke(app, ["results", "diff", str(first), str(third)])
    assert "1 do NOT agree" in ran.stderr
