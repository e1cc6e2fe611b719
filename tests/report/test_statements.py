"""Sentences of the docs: what records say of prediction and of repetition."""

from dataclasses import replace

from pages.statements import (
    MANY,
    agreement_statement,
    grid_table,
    picks_statement,
    prediction_statement,
)
from pages.tables import NOT_MEASURED
from report_records import record

from flashsmith.measure.record import Record
from flashsmith.report.sources import ReportData
from flashsmith.tuner.store.outcome import Timed


def timed(gpu_data, *times, winner=0):
    found = [m for m in gpu_data.measurements if isinstance(m.outcome, Timed)]
    return [
        replace(m, outcome=Timed(us, us, us, 31, "0"), gate=number == winner)
        for number, (m, us) in enumerate(zip(found, times, strict=False))
    ]


def test_two_tuning_runs_that_agree_say_so(gpu_data):
    first = timed(gpu_data, 100.0, 100.5)
    assert picks_statement(first, first) == (
        "Two runs over 1 problems, each from an empty results file: 1 same picks."
    )
    second = timed(gpu_data, 100.6, 100.0, winner=1)
    assert "0 same picks; where they differ, the two picks are 0.60% apart" in picks_statement(
        first, second
    )
    apart = timed(gpu_data, 103.0, 100.0, winner=1)
    assert "3.00% apart at most as measured, and on 1 problems by 1% or more" in picks_statement(
        first, apart
    )
    assert picks_statement(first, []) == NOT_MEASURED


def test_two_benchmarks_are_held_against_each_other():
    runs = [
        [record("quick", "cuDNN", 1024, 100.0, ratio=ratio)]
        for ratio in ((0.8, 0.79, 0.82), (0.81, 0.8, 0.83), (0.9, 0.89, 0.91))
    ]
    for r in (r for run in runs for r in run):
        r.result["control"] = 1.0
    assert "1 of 1 ratios agree" in agreement_statement(runs[0], runs[1])
    assert "the medians are 1.2% apart" in agreement_statement(runs[0], runs[1])
    assert "0 of 1 ratios agree" in agreement_statement(runs[0], runs[2])
    assert agreement_statement([], runs[0]) == NOT_MEASURED


def test_the_prediction_is_judged_by_the_times_beside_it(gpu_data):
    words = prediction_statement(gpu_data)
    assert words.startswith("On 1 problems of the committed H200 measurements the worst top-5")
    assert "regret is 0.0%" in words
    assert "rank correlation" not in words
    assert prediction_statement(ReportData((), gpu_data.measurements, "x")) == NOT_MEASURED
    one = gpu_data.measurements[-1]
    many = [
        replace(one, key=replace(one.key, config=str(n)), outcome=Timed(9.0 + n, 1, 1, 5, "0"))
        for n in range(MANY)
    ]
    places = {(m.key.config, m.key.problem): n for n, m in enumerate(many)}
    words = prediction_statement(ReportData((), tuple(many), "x", places))
    assert "On the 1 of them where 20 configurations or more were timed" in words
    assert "the rank correlation is 1.00 to 1.00" in words


def test_what_came_of_the_grids_is_counted_by_grid_and_feature():
    assert grid_table([]) == NOT_MEASURED
    where = {"device": "NVIDIA H200", "date": "2026-11-18T12", "commit": "abc"}

    def run(right, wrong):
        counts = {"right": right, "refused: dropout": 7, "wrong": wrong}
        grids = {"flash_attn_func": counts, "all": counts | {"seconds": 358.4}}
        what = {"suite": "flash_attn_grid", "cases": right + wrong + 7}
        return [Record({**what, "grid": name}, found, where) for name, found in grids.items()]

    table = grid_table([*run(1, 2), *run(1993, 0)]).splitlines()
    assert table[0] == "| grid | right | refused: dropout | wrong |"
    assert table[2:4] == ["| flash_attn_func | 1,993 | 7 | 0 |", "| all | 1,993 | 7 | 0 |"]
    assert table[-1] == "2,000 of 2,000 cases in 358 s on NVIDIA H200, 2026-11-18."
