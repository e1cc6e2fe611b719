"""The page as a file: one, complete, and harmless whatever the files it is made of say."""

import json
import re
from dataclasses import replace

import pytest
from report_records import CONFIGS, profiled, record
from typer.testing import CliRunner

from flashsmith.base.errors import ArgumentError, DamagedFile
from flashsmith.cli.main import app
from flashsmith.report.contenders import tflops_of
from flashsmith.report.left_out import left_out
from flashsmith.report.page import write_page
from flashsmith.report.rows import all_rows
from flashsmith.report.sources import ReportData, gather, shipped_records

MEGABYTE = 1 << 20


def test_a_page_is_one_file_that_loads_nothing(gpu_data, tmp_path):
    path = tmp_path / "report.html"
    write_page(gpu_data, path)
    text = path.read_text()
    assert path.stat().st_size < 8 * MEGABYTE
    assert not re.search(r"<(?:script|link|img|iframe)[^>]+(?:src|href)=", text)
    assert "@@" not in re.sub(r"<script>.*?</script>", "", text, flags=re.S)


def test_what_is_left_out_comes_last_with_the_command_that_brings_it(gpuless_data, tmp_path):
    write_page(gpuless_data, tmp_path / "r.html")
    text = (tmp_path / "r.html").read_text()
    gap = "Peers were not measured: <code>flashsmith bench -o FILE</code>."
    assert text.index("<h2>Environment") < text.index(gap)
    assert "Nothing was timed: there was no GPU." in text


def test_a_page_with_everything_leaves_nothing_out(gpu_data):
    assert left_out(gpu_data) == []
    assert "No predicted order" in left_out(replace(gpu_data, places={}))[0]
    assert "7 candidates were not reached" in left_out(replace(gpu_data, unreached=7))[0]


@pytest.mark.parametrize("text", ["</script><b>", "<!--<script>"])
def test_no_text_of_a_record_ends_the_script_or_begins_a_comment(gpu_data, tmp_path, text):
    bad = record("paper", f"{text} peer", 1024, 90.0)
    write_page(ReportData((*gpu_data.records, bad), (), "x"), tmp_path / "r.html")
    assert text not in (tmp_path / "r.html").read_text()
    assert "\\u003c" in (tmp_path / "r.html").read_text()


def test_the_title_says_where_and_how_it_ended(gpu_data, tmp_path):
    write_page(gpu_data, tmp_path / "r.html")
    text = (tmp_path / "r.html").read_text()
    assert "<title>flashsmith: NVIDIA H200: 1.20 times as fast as cuDNN</title>" in text


def test_the_page_states_clocks_packages_and_the_days(gpu_data, tmp_path):
    dates = ("2026-11-15T09:00:00+00:00", "2026-11-16T09:00:00+00:00", "2026-11-15T10:00:00+00:00")
    facts = {"max_sm_mhz": 1980, "packages": {"numpy": "2.1"}}
    records = tuple(
        replace(r, environment={**r.environment, **facts, "date": date})
        for r, date in zip(gpu_data.records, dates, strict=False)
    )
    path = tmp_path / "r.html"
    write_page(replace(gpu_data, records=records), path)
    text = path.read_text()
    assert "<th>highest SM clock, MHz</th><td>1980</td>" in text
    assert "<td>numpy 2.1</td>" in text
    assert f" to {dates[1]}</td>" in text


def test_rows_say_what_varies_in_words_and_explain_how_they_were_timed(gpu_data):
    found = all_rows(gpu_data)
    assert found.columns == [
        *("eager", "swizzled", "load_tiles", "buffer", "opt_softmax", "outcome", "time, µs"),
        *("predicted place", "class", "reason"),
    ]
    times = [row["time, µs"] for row in found.rows]
    assert times == [*sorted(t for t in times if t), None]
    assert "registers per thread 168" in found.reads
    assert "screen: a few runs of every candidate" in found.reads
    assert found.rows[0]["words"] == CONFIGS[1].short_form()


def test_records_without_a_tuning_run_are_rows_too(gpu_data):
    found = all_rows(replace(gpu_data, measurements=()))
    assert len(found.rows) == len(gpu_data.records)
    assert all_rows(ReportData((), (), "x")).rows == []


def test_a_page_makes_its_folder_and_takes_no_text_for_a_mark(gpu_data, tmp_path):
    odd = record("paper", "@@PLOTLY@@ peer", 1024, 900.0)
    data = type(gpu_data)((*gpu_data.records, odd), gpu_data.measurements, "x")
    path = tmp_path / "new" / "page.html"
    write_page(data, path)
    assert "@@PLOTLY@@ peer" in path.read_text(encoding="utf-8")


def test_a_file_without_times_makes_no_page(tmp_path):
    path = tmp_path / "none.jsonl"
    path.write_text("")
    ran = CliRunner().invoke(app, ["report", str(path), "-o", str(tmp_path / "page.html")])
    assert "none.jsonl holds no times" in str(ran.exception)
    assert not (tmp_path / "page.html").exists()


def test_a_corrupt_line_is_named(tmp_path):
    path = tmp_path / "bad.jsonl"
    path.write_text('{"schema": 1, "what": {"q_len": 9}, "result": {"median_us": 1}}\n')
    with pytest.raises(DamagedFile, match=r"bad\.jsonl, line 1: 'what' lacks batch, d_head"):
        gather([path])
    path.write_text(record("paper", "cuDNN", 1024, 7.5).to_line().replace("7.5", '"fast"'))
    with pytest.raises(DamagedFile, match=r"line 1: field 'result.median_us' is 'fast'"):
        gather([path])
    good = record("paper", "cuDNN", 1024, 7.5).to_line()
    path.write_text("\n\n" + good.replace('"q_len": 1024', '"q_len": [1]'))
    with pytest.raises(DamagedFile, match="line 3: suite, name, shape, rounds, place or a counter"):
        gather([path])
    path.write_text(profiled("A", 1024, 50.0).to_line().replace("50.0", '"half"'))
    with pytest.raises(DamagedFile, match="place or a counter is of a wrong type"):
        gather([path])
    path.write_text("not json\n")
    with pytest.raises(DamagedFile, match="not a line of JSON"):
        gather([path])
    with pytest.raises(ArgumentError, match="cannot be read"):
        gather([tmp_path / "none.jsonl"])


def test_records_of_other_kinds_have_no_chart_and_do_no_harm(tmp_path):
    path = tmp_path / "host.jsonl"
    path.write_text('{"schema": 1, "what": {"call": "warm"}, "result": {"median_us": 20.0}}\n')
    assert gather([path]).is_empty


def test_every_shipped_record_is_json_with_an_environment():
    for path in shipped_records():
        for line in path.read_text().splitlines():
            assert isinstance(json.loads(line), dict)


@pytest.mark.parametrize("stated", [None, "fast", True, [1]])
def test_a_record_without_a_rate_gets_the_one_that_its_time_means(gpu_data, tmp_path, stated):
    usual = gpu_data.records[0]
    bare = replace(usual, result={**usual.result, "tflops": stated})
    assert tflops_of(bare) == pytest.approx(usual.result["tflops"])
    write_page(ReportData((bare, *gpu_data.records[1:]), (), "x"), tmp_path / "r.html")
