"""Charts: ratios stay inside a run, spreads are shown, one waterfall a ladder, regret is stated."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest
from report_records import CONFIGS, profiled, record

from flashsmith.kernels import get_kernel_configs
from flashsmith.report import (
    counter_charts,
    ladder_charts,
    order_charts,
    record_charts,
    tuning_charts,
)
from flashsmith.report.contenders import OURS, against_peers, product_tflops
from flashsmith.report.sources import ReportData, gather
from flashsmith.report.summary import missing
from flashsmith.report.winners import winners
from flashsmith.tuner.store.outcome import Timed

SAME = (1.0, 1.0, 1.0)
HOPPER = get_kernel_configs("hopper-prog")


def test_a_ratio_is_never_taken_between_two_runs():
    old = [record("a", OURS, 1024, 50.0), record("a", "cuDNN", 1024, 60.0)]
    new = [
        record("b", OURS, 1024, 100.0, ratio=SAME, date="2026-11-16"),
        record("b", "FlashInfer", 1024, 200.0, ratio=(0.5, 0.4, 0.8), date="2026-11-16"),
    ]
    found = {a.peer: a for a in against_peers([*new, *old])}
    assert found["cuDNN"].ratio == 1.2
    assert found["FlashInfer"].ratio == 2.0
    assert (found["FlashInfer"].p20, found["FlashInfer"].p80) == (1.25, 2.5)


def test_what_was_taken_in_too_few_rounds_is_no_evidence_and_said():
    records = [record("explored", name, 1024, us) for name, us in ((OURS, 50.0), ("cuDNN", 60.0))]
    for r in records:
        r.result["rounds"] = 11
    assert against_peers(records) == []
    gaps = " ".join(missing(ReportData(tuple(records), (), "x")))
    assert "2 records of explored were taken in fewer than 15 rounds" in gaps


def test_the_newest_run_of_a_peer_counts():
    runs = [
        [record("a", OURS, 1024, 100.0, date=d), record("a", "cuDNN", 1024, us, date=d)]
        for d, us in (("2026-11-16", 150.0), ("2026-11-15", 110.0))
    ]
    (found,) = against_peers([*runs[0], *runs[1]])
    assert found.ratio == 1.5


def test_the_spread_of_the_rounds_is_drawn():
    ours = record("a", CONFIGS[0].short_form(), 1024, 80.0, ratio=(1.25, 1.2, 1.4))
    peer = record("a", "torch FA2", 1024, 100.0, ratio=SAME)
    figure = record_charts.speedups([ours, peer], "burst")
    (bars,) = figure.data
    assert bars["name"] == "over FlashAttention-2 (torch)"
    assert bars["y"] == [1.25]
    assert bars["error_y"]["array"] == [pytest.approx(0.15)]
    assert bars["error_y"]["arrayminus"] == [pytest.approx(0.05)]
    assert record_charts.speedups([ours, peer], "sustained") is None


def test_every_ladder_has_a_waterfall_whose_steps_say_what_they_add():
    records = [
        record("progression", config.short_form(), length, 2000.0 - n)
        for length, ladder in ((4096, CONFIGS), (1024, CONFIGS), (4096, HOPPER))
        for n, config in enumerate(ladder)
    ]
    for r in records[-len(HOPPER) :]:
        r.environment["date"] = "2026-11-16"
    figures = ladder_charts.ladders(records)
    assert len(figures) == 3
    first = figures[0].data[0]
    assert len(first["x"]) == len(CONFIGS)
    assert {f.data[0]["x"][0] for f in figures} == {"1. the start"}
    assert any("2. swizzled" in f.data[0]["x"][1] for f in figures)
    assert all(len(f.data[1]["error_y"]["array"]) == len(f.data[0]["x"]) for f in figures)


def test_a_step_names_every_knob_that_it_moves_and_its_family():
    records = [record("progression", c.short_form(), 4096, 9.0 - n) for n, c in enumerate(CONFIGS)]
    (figure,) = ladder_charts.ladders(records)
    label = figure.data[0]["x"][3]
    assert label == ("4. Q_mma_load_K_tiles: 2<br>K_mma_load_K_tiles: 2<br>V_mma_load_K_tiles: 2")
    assert "sm80_forward" in figure.layout["title"]["text"]


def test_shapes_stand_in_order_whichever_peer_has_them():
    runs = [(4096, ("cuDNN",)), (1024, ("cuDNN", "FlashInfer")), (512, ("FlashInfer",))]
    records = [record("a", OURS, length, 50.0) for length, _ in runs]
    records += [record("a", peer, length, 60.0) for length, peers in runs for peer in peers]
    figure = record_charts.speedups(records, "burst")
    assert all(trace["x"][1] == ["512", "1024", "4096"] for trace in figure.data)
    by_peer = {trace["name"]: trace["y"] for trace in figure.data}
    assert by_peer["over cuDNN"] == [None, 1.2, 1.2]
    assert by_peer["over FlashInfer"] == [1.2, 1.2, None]


def test_the_roof_bends_at_its_knee_only(gpu_data):
    figure = record_charts.roofline(gpu_data.records, [], "NVIDIA H200")
    roof = figure.data[0]
    slopes = {
        round(math.log(y1 / y0) / math.log(x1 / x0), 6)
        for (x0, y0), (x1, y1) in pairwise(zip(roof["x"], roof["y"], strict=True))
    }
    assert slopes == {0.0, 1.0}


def test_spills_go_from_none_upwards(gpu_data):
    facts = [0, 408, 8, 0, 56]
    spilling = [
        replace(m, environment={**m.environment, "spill_bytes": n})
        for m, n in zip(gpu_data.measurements, facts, strict=False)
    ]
    (bars,) = tuning_charts.spills(spilling).data
    assert bars["x"] == ["none", "8 bytes", "56 bytes", "408 bytes"]
    assert bars["y"] == [2, 1, 1, 1]


def test_classes_are_told_apart_by_width_and_mask(gpu_data):
    timed = [m for m in gpu_data.measurements if isinstance(m.outcome, Timed)]
    causal = [
        replace(m, key=replace(m.key, problem=replace(m.key.problem, causal=True))) for m in timed
    ]
    (bars,) = tuning_charts.numeric_classes([*timed, *causal]).data
    assert bars["x"][0] == ["d 128, full"] * 2 + ["d 128, causal"] * 2
    assert sum(bars["y"]) == 2 * len(timed)
    few = tuning_charts.numeric_classes(timed)
    assert not few.layout["meta"]["wide"]


def test_without_times_the_predicted_order_is_shown_and_called_that(gpu_data, gpuless_data):
    assert order_charts.predicted_order(gpu_data.measurements, gpu_data.places) is None
    assert order_charts.predicted_order(gpuless_data.measurements, {}) is None
    last_first = {key: len(gpuless_data.places) - n for n, key in enumerate(gpuless_data.places)}
    figure = order_charts.predicted_order(gpuless_data.measurements, last_first)
    assert "Predicted order, nothing was timed" in figure.layout["title"]["text"]
    assert figure.layout["yaxis"]["categoryarray"][-1] == f"1. {CONFIGS[-1].short_form()} "
    assert sum(len(trace["y"]) for trace in figure.data) == len(CONFIGS)


def test_how_candidates_ended_is_a_chart_only_where_they_ended_differently(gpu_data):
    assert tuning_charts.outcomes(gpu_data.measurements) is not None
    timed = [m for m in gpu_data.measurements if isinstance(m.outcome, Timed)]
    assert tuning_charts.outcomes(timed) is None
    assert tuning_charts.outcomes([]) is None


def test_a_chart_says_how_to_read_it(gpu_data):
    shown = [
        record_charts.speedups(gpu_data.records, "burst"),
        record_charts.roofline(gpu_data.records, [], "NVIDIA H200"),
        *ladder_charts.ladders(gpu_data.records),
        tuning_charts.landscape(gpu_data.measurements),
        tuning_charts.resources(gpu_data.measurements),
        tuning_charts.numeric_classes(gpu_data.measurements),
    ]
    assert all("<br><span" in figure.layout["title"]["text"] for figure in shown)


def test_a_knob_is_shown_over_the_lengths():
    records = [
        record("knob B_c", CONFIGS[-1].replace(B_c=b).short_form(), length, 10.0)
        for length in (1024, 4096)
        for b in (32, 64)
    ]
    (figure,) = ladder_charts.knobs(records)
    assert [trace["name"] for trace in figure.data] == ["B_c = 32", "B_c = 64"]
    assert against_peers(records) == []


def test_what_a_profiler_counted_is_drawn_by_length_and_the_newest_counts(tmp_path):
    path = tmp_path / "profile.jsonl"
    names = [config.short_form() for config in CONFIGS[:2]]
    taken = [profiled(name, length, 40.0) for length in (4096, 1024) for name in names]
    taken += [profiled(names[1], 4096, 55.0), profiled(names[0], 1024, 60.0, causal=True)]
    path.write_text("".join(f"{r.to_line()}\n" for r in taken))
    data = gather([path])
    assert data.records == ()
    (figure,) = counter_charts.counters(data.counted)  # one kernel alone, the causal, is no chart
    assert [trace["name"] for trace in figure.data] == ["1,024", "4,096"]
    assert figure.data[1]["x"] == [40.0, 55.0]
    assert figure.data[1]["text"][1].startswith(names[1])
    assert "168 registers a thread" in figure.data[1]["text"][1]
    assert "no counters were taken" in " ".join(missing(replace(data, counted=())))


def test_the_prediction_states_its_regret(gpu_data):
    times = tuning_charts.times_of(ReportData((), gpu_data.measurements, "x"))
    worst_first = {key: -n for n, key in enumerate(sorted(times, key=times.get))}
    figure = tuning_charts.predicted(times, worst_first)
    best, fifth = min(times.values()), sorted(times.values())[-5]
    assert f"{fifth / best - 1:.1%} off at most" in figure.layout["title"]["text"]
    assert "rank correlation -1.00 (1 problems)" in figure.layout["title"]["text"]
    assert figure.data[0]["name"] == f"d 128, full: regret {fifth / best - 1:.1%}"
    assert tuning_charts.predicted(times, {}) is None


def test_a_winner_is_ahead_of_what_was_timed_in_the_same_way(gpu_data):
    def timed(config, us, protocol, length=512):
        m = gpu_data.measurements[-1]
        problem = replace(m.key.problem, q_len=length)
        key = replace(m.key, config=config, protocol=protocol, problem=problem)
        return replace(m, key=key, outcome=Timed(us, us, us, 9, "0"))

    a, b, c = (config.short_form() for config in CONFIGS[:3])
    screened = [timed(config, us, "screen") for config, us in ((a, 1.0), (b, 9.0), (c, 9.5))]
    finals = [timed(b, 8.0, "final"), timed(c, 8.8, "final"), timed(a, 7.0, "final", length=64)]
    first, second = winners([*screened, *finals])
    assert (first.problem.q_len, first.config, first.ahead) == (64, a, None)
    assert (second.config, second.median_us) == (b, 8.0)
    assert second.ahead == pytest.approx(0.1)


def test_a_records_time_stands_against_a_prediction_too():
    records = [record("a", c.short_form(), 1024, 9.0 + n) for n, c in enumerate(CONFIGS[:3])]
    void = record("a", CONFIGS[3].short_form(), 1024, 1.0, void=True)
    times = tuning_charts.times_of(ReportData((*records, void), (), "x"))
    assert list(times.values()) == [9.0, 10.0, 11.0]


def test_the_matrix_products_rate_is_of_its_own_operations():
    assert product_tflops([record("a", "GEMM", 1024, 1400.0)]) == pytest.approx(785.4, abs=0.1)
    assert product_tflops([record("a", OURS, 1024, 1400.0)]) is None
