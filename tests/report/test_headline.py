"""The top of the page: three facts, and a title with GPU and verdict, whatever the data hold."""

from dataclasses import replace

from report_records import CONFIGS, profiled, record

from flashsmith.report.contenders import product_tflops, tflops_of
from flashsmith.report.headline import headline, shapes_text
from flashsmith.report.rows import all_rows
from flashsmith.report.sources import ReportData
from flashsmith.tuner.store.outcome import Timed, Wrong


def words(data):
    top = headline(data)
    return " ".join(" ".join((f.value, f.what, f.reads)) for f in top.facts)


def test_against_peers_it_names_the_nearest_with_its_control(gpu_data):
    top = headline(gpu_data)
    assert top.title == "NVIDIA H200: 1.20 times as fast as cuDNN"
    assert top.shapes == "2 shapes: FP16, d_head 128, 1,024 to 4,096 long, full mask"
    assert top.dates == "2026-11-15"
    assert len(top.facts) == 3
    assert "Control, one kernel timed twice in the same rounds: off by 0.0% at most" in words(
        gpu_data
    )
    assert "Regime burst: each run after 4 ms of rest" in words(gpu_data)


def test_a_share_of_the_matrix_product_above_100_says_what_that_means():
    def run(name, us):
        return record("a", name, 4096, us)

    fast = ReportData((run("flashsmith", 200.0), run("cuDNN", 250.0), run("GEMM", 1400.0)), (), "x")
    share = tflops_of(fast.records[0]) / product_tflops(fast.records)
    assert f"{share:.0%} (4,096, d 128, full) of the 785 TFLOP/s" in words(fast)
    assert "The product is a yardstick, not a limit: above 100 %" in words(fast)
    slow = ReportData((run("flashsmith", 900.0), run("cuDNN", 999.0), run("GEMM", 1400.0)), (), "x")
    assert "yardstick" not in words(slow)


def test_a_tuning_run_names_the_winner_and_its_margin(gpu_data):
    data = replace(gpu_data, records=())
    top = headline(data)
    assert top.title == "NVIDIA H200: 51.0 µs, the fastest that was tuned"
    assert top.facts[0].value == CONFIGS[1].short_form()
    assert "2.0% ahead of the next" in words(data)
    assert "6 of 7 candidates are right" in words(data)
    assert "No peer was timed beside it" in words(data)


def test_many_winners_are_summed_up_with_the_most_frequent(gpu_data):
    timed = [m for m in gpu_data.measurements if isinstance(m.outcome, Timed)]
    many = [
        replace(m, key=replace(m.key, problem=replace(m.key.problem, q_len=length)))
        for length in (64, 128, 256)
        for m in timed
    ]
    data = ReportData((), tuple(many), "x")
    assert headline(data).title.startswith("NVIDIA H200: 3 problems tuned, ")
    assert "the winner most often, on 3 of 3 problems 2.0% ahead" in words(data).lower()


def test_without_a_gpu_it_says_so_and_what_is_predicted(gpuless_data):
    top = headline(gpuless_data)
    assert top.title == "sm_90a, not timed: 7 of 7 configurations are right"
    assert top.facts[0].what == "predicted fastest on 512, d 128, full, not measured"
    assert "nothing was timed" in words(gpuless_data)
    assert "3 classes of equal bits" in words(gpuless_data)
    one = ReportData((), gpuless_data.measurements[:1], "x")
    assert "1 class of equal bits" in words(one)
    assert "How it was timed" not in all_rows(gpuless_data).reads


def test_ladders_counters_and_failures_alone_have_a_title_too(gpu_data):
    ladder = tuple(r for r in gpu_data.records if r.what["suite"] == "progression")
    title = headline(ReportData(ladder, (), "x")).title
    assert title == "NVIDIA H200: sm80_forward: 7 steps, together 1.00 times as fast"
    assert headline(ReportData(ladder[:1], (), "x")).title == "NVIDIA H200: what was timed"
    counted = (profiled("A", 1024, 40.0), profiled("B", 1024, 60.0))
    data = ReportData((), (), "x", counted=counted)
    assert "Tensor cores are busy 40 to 60 % of the cycles" in words(data)
    wrong = tuple(replace(m, outcome=Wrong("far off")) for m in gpu_data.measurements)
    assert "none of 7 candidates is right" in headline(ReportData((), wrong, "x")).title


def test_void_records_are_no_evidence(gpu_data):
    slow = record("paper", "slow peer", 1024, 1e6, void=True)
    data = ReportData((*gpu_data.records, slow), (), "x")
    assert "slow peer" not in words(data)


def test_shapes_are_one_line():
    problems = [
        record("a", "b", n, 1.0, causal=c).problem for n in (512, 1024) for c in (0 == 1, True)
    ]
    assert shapes_text(problems) == (
        "4 shapes: FP16, d_head 128, 512 to 1,024 long, full and causal mask"
    )
    assert shapes_text(problems[:1]) == "1 shape: FP16, d_head 128, 512 long, full mask"
    assert shapes_text([]) == ""
