"""The report: every chart is drawn in a browser, the filter filters, nothing comes from outside."""

import json
import re
from dataclasses import replace

import pytest
from report_records import profiled, record
from typer.testing import CliRunner

from flashsmith.base.errors import ArgumentError, DamagedFile
from flashsmith.cli.main import app
from flashsmith.report.page import write_page
from flashsmith.report.sources import ReportData, gather, shipped_records
from flashsmith.report.summary import missing, sentences
from flashsmith.tuner.store.outcome import Timed

MEGABYTE = 1 << 20


def charts_drawn(dom):
    return len(
        re.findall(r'class="chart[^"]*"[^>]*id="chart\d+"|id="chart\d+"[^>]*class="chart', dom)
    )


def points_shown(dom):
    return dom.count('<path class="point"')


def rows_shown(dom):
    body = dom.partition('id="rows"')[2].partition("<tbody>")[2].partition("</tbody>")[0]
    return body.count("<tr>")


@pytest.mark.parametrize(("kind", "least"), [("gpu_data", 10), ("gpuless_data", 5)])
def test_a_page_draws_every_chart_with_a_clean_console(kind, least, request, tmp_path, opened):
    data = request.getfixturevalue(kind)
    path = tmp_path / "report.html"
    count = write_page(data, path)
    assert count >= least
    dom, console = opened(path)
    assert console == []
    assert charts_drawn(dom) == count
    assert dom.count('class="main-svg"') >= count
    assert rows_shown(dom) == len(data.measurements)
    assert ">predicted_place</th>" in dom


def test_the_shipped_records_make_a_page_with_charts(tmp_path, opened, monkeypatch):
    monkeypatch.setenv("FLASHSMITH_RESULTS", str(tmp_path / "none.sqlite"))
    data = gather([])
    assert "come with flashsmith" in data.source
    count = write_page(data, tmp_path / "report.html")
    assert count >= 5
    dom, console = opened(tmp_path / "report.html")
    assert console == []
    assert dom.count('class="main-svg"') >= count


def test_the_filter_leaves_rows_that_hold_every_word(gpu_data, tmp_path, opened):
    path = tmp_path / "report.html"
    write_page(gpu_data, path)
    dom, _ = opened(path, "#eager%20opt_softmax")
    wanted = [m for m in gpu_data.measurements if "eager" in m.key.config]
    wanted = [m for m in wanted if "opt_softmax" in m.key.config]
    assert 0 < rows_shown(dom) == len(wanted)
    # The landscape and the prediction show each configuration that was timed as a point.
    everything, _ = opened(path)
    timed = [m for m in gpu_data.measurements if isinstance(m.outcome, Timed)]
    gone = [m for m in timed if m not in wanted]
    assert points_shown(everything) - points_shown(dom) == 2 * len(gone) > 0


def test_a_page_is_one_file_that_loads_nothing(gpu_data, tmp_path):
    path = tmp_path / "report.html"
    write_page(gpu_data, path)
    text = path.read_text()
    assert path.stat().st_size < 8 * MEGABYTE
    assert not re.search(r"<(?:script|link|img|iframe)[^>]+(?:src|href)=", text)
    assert "@@" not in re.sub(r"<script>.*?</script>", "", text, flags=re.S)


def test_commands_in_the_words_are_code(gpuless_data, tmp_path):
    write_page(gpuless_data, tmp_path / "r.html")
    text = (tmp_path / "r.html").read_text()
    assert "Left out: no peers were measured (<code>flashsmith bench</code>)." in text


def test_a_configuration_cannot_end_the_script(gpu_data, tmp_path):
    bad = record("paper", "</script><b>peer", 1024, 90.0)
    write_page(type(gpu_data)((*gpu_data.records, bad), (), "x"), tmp_path / "r.html")
    assert "</script><b>" not in (tmp_path / "r.html").read_text()


def test_the_words_name_winner_margin_and_peers(gpu_data, gpuless_data):
    words = " ".join(sentences(gpu_data))
    assert "1.200 times as fast as cuDNN" in words
    assert "51.0 µs, 2.0% ahead of the next" in words
    assert "7 launches were profiled: their tensor cores are busy 40 to 46 % of the" in words
    without = " ".join(sentences(gpuless_data))
    assert "Nothing was timed" in without
    first = gpuless_data.measurements[0].key.config
    assert f"Predicted fastest on 512, d 128, full, not measured: {first}." in without
    assert any("nothing was timed" in gap for gap in missing(gpuless_data))
    assert missing(gpu_data) == []
    assert "no predicted order" in missing(replace(gpu_data, places={}))[0]


def test_many_winners_are_summed_up_with_the_most_frequent_and_the_margin(gpu_data):
    timed = [m for m in gpu_data.measurements if isinstance(m.outcome, Timed)]
    many = [
        replace(m, key=replace(m.key, problem=replace(m.key.problem, q_len=length)))
        for length in (64, 128, 256, 512, 1024)
        for m in timed
    ]
    words = " ".join(sentences(ReportData((), tuple(many), "x")))
    assert f"Most often, on 5 of them: {timed[0].key.config}." in words
    assert "In the median a winner is 2.0% ahead" in words
    assert f"{len(many)} candidates were right and timed, all that there were" in words
    words = " ".join(sentences(gpu_data))
    assert f"{len(timed)} candidates were right and timed; 1 could not be" in words


def test_the_page_states_protocols_clocks_packages_and_the_days(gpu_data, tmp_path):
    dates = ("2026-11-15T09:00:00+00:00", "2026-11-16T09:00:00+00:00", "2026-11-15T10:00:00+00:00")
    facts = {"max_sm_mhz": 1980, "packages": {"numpy": "2.1"}}
    records = tuple(
        replace(r, environment={**r.environment, **facts, "date": date})
        for r, date in zip(gpu_data.records, dates, strict=False)
    )
    path = tmp_path / "r.html"
    write_page(replace(gpu_data, records=records), path)
    text = path.read_text()
    assert "<th>max_sm_mhz</th><td>1980</td>" in text
    assert "<td>numpy 2.1</td>" in text
    assert f" to {dates[1]}</td>" in text
    assert '"protocol": "screen"' in text
    rows = json.loads(re.search(r"rows = (\[.*?\]), columns", text)[1])
    times = [row["median_us"] for row in rows]
    assert times == [*sorted(t for t in times if t), None]


def test_void_records_are_no_evidence(gpu_data):
    slow = record("paper", "slow peer", 1024, 1e6, void=True)
    data = type(gpu_data)((*gpu_data.records, slow), (), "x")
    assert "slow peer" not in " ".join(sentences(data))


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
