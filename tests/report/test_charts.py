"""Charts: one point a measurement, axes in words and units, and none that says nothing."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest
from report_records import CONFIGS, profiled, record

from flashsmith.report import counter_charts, ladders, record_charts, tuning_charts
from flashsmith.report.contenders import OURS, product_tflops, tflops_of
from flashsmith.report.figure import hover
from flashsmith.report.left_out import left_out
from flashsmith.report.sources import ReportData, gather
from flashsmith.report.winners import winners
from flashsmith.tuner.store.outcome import Timed


def rates(**more):
    return [
        record("a", name, length, us * length / 1024, **more)
        for length in (1024, 4096)
        for name, us in ((OURS, 50.0), ("cuDNN", 60.0))
    ]


def test_rates_stand_over_the_length_a_line_for_each_contender():
    figure = record_charts.peers_over_length(rates(), [], 128, False)
    assert [name for name, _, _ in figure.legend()] == [OURS, "cuDNN"]
    assert figure.data[0]["x"] == [1024, 4096]
    assert record_charts.peers_over_length(rates()[:2], [], 128, False) is None


def test_a_line_of_ours_never_mixes_kernels():
    fast, slow = (CONFIGS[-1].short_form(), 1024), ("hopper", 4096)
    from flashsmith.kernels import get_kernel_configs

    other = get_kernel_configs("hopper-prog")[0].short_form()
    records = [
        record("a", other, fast[1], 10.0),
        record("a", other, slow[1], 10.0),
        record("a", fast[0], fast[1], 20.0),
        record("a", fast[0], 2048, 20.0),
        *rates(),
    ]
    figure = record_charts.peers_over_length(
        [r for r in records if r.what["name"] != OURS], [], 128, False
    )
    ours = next(trace for trace in figure.data if trace["name"] == OURS)
    assert ours["x"] == [1024, 4096]


def test_points_under_the_roof_are_of_one_kernel():
    from flashsmith.kernels import get_kernel_configs

    fast, slow = get_kernel_configs("hopper-prog")[0].short_form(), CONFIGS[-1].short_form()
    records = [record("a", fast, 1024, 10.0), record("b", slow, 4096, 900.0)]
    figure = record_charts.roofline(records, [], "NVIDIA H200")
    (points,) = (trace for trace in figure.data if trace["mode"] == "markers")
    assert len(points["x"]) == 1
    assert "of sm90_forward" in figure.reads
    assert "4 ms of rest" in figure.reads


def test_a_record_without_a_rate_has_the_one_that_its_time_means():
    stated = record("a", OURS, 1024, 50.0)
    silent = replace(stated, result={n: v for n, v in stated.result.items() if n != "tflops"})
    assert tflops_of(silent) == pytest.approx(tflops_of(stated))
    assert tflops_of(replace(stated, result={**stated.result, "tflops": None})) > 0
    records = [
        replace(r, result={n: v for n, v in r.result.items() if n not in ("tflops", "ratio")})
        for r in rates()
    ]
    assert record_charts.peers_over_length(records, [], 128, False) is not None
    assert record_charts.roofline(records, [], "NVIDIA H200") is not None


def test_the_roof_bends_at_its_knee_only(gpu_data):
    figure = record_charts.roofline(gpu_data.records, [], "NVIDIA H200")
    roof = figure.data[0]
    slopes = {
        round(math.log(y1 / y0) / math.log(x1 / x0), 6)
        for (x0, y0), (x1, y1) in pairwise(zip(roof["x"], roof["y"], strict=True))
    }
    assert slopes == {0.0, 1.0}


def test_a_knob_shows_what_it_brings_over_being_without_it():
    on = CONFIGS[2]
    off = on.replace(eager_load_blocks=False)
    records = [
        record("knob eager_load_blocks", config.short_form(), length, 10.0, ratio=ratio)
        for length in (1024, 4096)
        for config, ratio in ((on, (1.0, 1.0, 1.0)), (off, (0.8, 0.75, 0.8)))
    ]
    (figure,) = ladders.knobs(records)
    (line,) = figure.data
    assert figure.title == "What eager brings: 1.25 to 1.25 times the speed"
    assert line["y"] == [1.25, 1.25]
    assert line["error_y"]["array"] == pytest.approx([1 / 0.75 - 1.25] * 2, abs=1e-4)
    assert figure.layout["yaxis"]["title"]["text"] == "times as fast as without it"


def test_a_knob_of_several_values_is_shown_against_the_first():
    records = [
        record("knob B_c", CONFIGS[-1].replace(B_c=b).short_form(), length, float(b))
        for length in (1024, 4096)
        for b in (64, 32, 128)
    ]
    (figure,) = ladders.knobs(records)
    assert [name for name, _, _ in figure.legend()] == ["B_c 64", "B_c 128"]
    assert figure.layout["yaxis"]["title"]["text"] == "times as fast as with B_c 32"


def test_a_knob_nobody_knows_has_no_chart():
    odd = [record("knob nosuch", c.short_form(), 1024, 9.0) for c in CONFIGS[:2]]
    assert ladders.knobs([*odd, record("knob B_c", "cuDNN", 1024, 9.0)]) == []


def test_what_a_profiler_counted_is_drawn_by_length_and_the_newest_counts(tmp_path):
    path = tmp_path / "profile.jsonl"
    names = [config.short_form() for config in CONFIGS[:2]]
    taken = [profiled(name, length, 40.0) for length in (4096, 1024) for name in names]
    taken += [profiled(names[1], 4096, 55.0), profiled(names[0], 1024, 60.0, causal=True)]
    path.write_text("".join(f"{r.to_line()}\n" for r in taken))
    data = gather([path])
    assert data.records == ()
    (figure,) = counter_charts.counters(data.counted)  # one kernel alone, the causal, is no chart
    assert [name for name, _, _ in figure.legend()] == ["length 1,024", "length 4,096"]
    assert figure.data[1]["x"] == [40.0, 55.0]
    assert figure.data[1]["text"][1].startswith(names[1])
    assert "168 registers per thread" in figure.data[1]["text"][1]
    assert "Counters were not taken" in " ".join(left_out(replace(data, counted=())))


def test_the_prediction_states_its_regret_and_what_that_is(gpu_data):
    times = tuning_charts.times_of(ReportData((), gpu_data.measurements, "x"))
    worst_first = {key: -n for n, key in enumerate(sorted(times, key=times.get))}
    figure = tuning_charts.predicted(times, worst_first)
    best, fifth = min(times.values()), sorted(times.values())[-5]
    assert figure.title == (
        f"The predicted order against times: regret {fifth / best - 1:.1%} at most"
    )
    assert "Regret: how much slower the best of the five" in figure.reads
    assert "rank correlation with the times is -1.00 in the mean over 1 problem." in figure.reads
    assert figure.data[0]["name"] == f"d 128, full: regret {fifth / best - 1:.1%}"
    assert tuning_charts.predicted(times, {}) is None


def test_a_chart_of_what_is_all_the_same_is_not_drawn(gpu_data):
    assert tuning_charts.occupancy(gpu_data.measurements) is None  # one point
    varied = [
        replace(m, environment={**m.environment, "registers": 100 + n, "blocks_per_sm": 2 + n % 2})
        for n, m in enumerate(gpu_data.measurements)
    ]
    figure = tuning_charts.occupancy(varied)
    assert [name for name, _, _ in figure.legend()] == ["2 blocks per SM", "3 blocks per SM"]
    timed = [m for m in gpu_data.measurements if isinstance(m.outcome, Timed)]
    assert tuning_charts.landscape(timed[:2]) is None
    assert tuning_charts.landscape(timed) is not None


def test_a_chart_says_how_to_read_it_and_names_units(gpu_data):
    shown = [
        record_charts.peers_over_length(gpu_data.records, [], 128, False),
        record_charts.roofline(gpu_data.records, [], "NVIDIA H200"),
        *counter_charts.counters(gpu_data.counted),
        tuning_charts.landscape(gpu_data.measurements),
        tuning_charts.predicted(tuning_charts.times_of(gpu_data), gpu_data.places),
    ]
    assert all(figure.reads for figure in shown)
    titles = [f.layout[f"{axis}axis"]["title"]["text"] for f in shown for axis in "xy"]
    assert all("," in title or "time" in title for title in titles), titles
    assert not any("_" in title for title in titles)


def test_a_text_of_a_record_is_shown_letter_by_letter():
    assert hover("<b>a</b>", "\x1b[1m", "") == "&lt;b&gt;a&lt;/b&gt;<br>\\x1b[1m"


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
