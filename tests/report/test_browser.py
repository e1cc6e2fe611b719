"""The page in a browser: nothing overlaps at any width, on paper or after a change of size."""

from dataclasses import replace
from pathlib import Path

import pytest
from report_records import CONFIGS, record

from flashsmith.report.page import write_page
from flashsmith.report.sources import ReportData, gather
from flashsmith.tuner.store.outcome import Timed

PROBES = (Path(__file__).parent / "probes.js").read_text(encoding="utf-8")
CHARTS = "seen('.plot .main-svg')"
ROWS = "seen('#rows tbody tr')"


def opened(browser, path, fragment="", **window):
    browser.open(path, fragment, **window)
    browser.run(f"{PROBES}; true")
    return browser


def assert_laid_out(browser):
    browser.settle()
    assert browser.run("overlaps()") == []
    assert browser.run("misfits()") == []
    assert browser.run("overflow()") <= 0
    assert browser.console == []


@pytest.fixture(scope="module")
def shipped(tmp_path_factory):
    """The page of the records that come with flashsmith."""
    folder = tmp_path_factory.mktemp("shipped")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLASHSMITH_RESULTS", str(folder / "none.sqlite"))
        write_page(gather([]), folder / "report.html", reproduce="flashsmith report")
    return folder / "report.html"


@pytest.mark.parametrize(("kind", "charts"), [("gpu_data", 5), ("gpuless_data", 1)])
def test_a_page_draws_every_chart_with_a_clean_console(kind, charts, request, tmp_path, browser):
    data = request.getfixturevalue(kind)
    count = write_page(data, tmp_path / "report.html")
    assert count >= charts
    opened(browser, tmp_path / "report.html")
    assert_laid_out(browser)
    assert browser.run(CHARTS) >= count
    assert browser.run(ROWS) == len(data.measurements)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_nothing_overlaps_or_overflows_at_any_width(shipped, browser, theme):
    opened(browser, shipped, width=1400, theme=theme)
    assert browser.run("document.documentElement.dataset.theme") == theme
    assert browser.run(CHARTS) >= 5
    assert_laid_out(browser)
    for width in (800, 420):
        browser.resize(width, 900)
        assert_laid_out(browser)
    opened(browser, shipped, width=420, theme=theme)
    assert_laid_out(browser)


def test_a_window_that_changes_its_size_keeps_every_chart(shipped, browser):
    opened(browser, shipped, width=1400, height=900)
    for width, height in ((1400, 899), (420, 900), (1000, 700), (1400, 900)):
        browser.resize(width, height)
        assert_laid_out(browser)


def test_a_print_is_as_wide_as_paper_and_the_page_is_afterwards_as_before(shipped, browser):
    opened(browser, shipped, width=1400, theme="dark")
    before = browser.run("document.getElementById('chart0').clientWidth")
    browser.media(kind="print", theme="dark")
    assert_laid_out(browser)
    assert browser.run("document.documentElement.dataset.theme") == "light"
    assert browser.run("printedWidth()") <= 718  # A4 less its margins, in pixels
    assert browser.run(ROWS) == 20
    browser.media(theme="dark")
    assert_laid_out(browser)
    assert browser.run("document.documentElement.dataset.theme") == "dark"
    assert browser.run("document.getElementById('chart0').clientWidth") == before
    assert browser.pdf().startswith(b"%PDF")
    assert_laid_out(browser)


def test_the_first_screen_holds_what_a_reader_asks_first(shipped, browser):
    opened(browser, shipped, width=1400, height=900)
    words = browser.run("wordsAbove(900)")
    for asked in (
        "NVIDIA H200: 1.17 times as fast as FlashAttention-3",
        "36 shapes: BF16, d_head 64, 128 and 256, 512 to 16,384 long, full and causal mask",
        "2026-11-18",
        "the winner most often",
        "1.17×",
        "times as fast as FlashAttention-3, the fastest peer",
        "Control, one kernel timed twice in the same rounds: off by",
        "To make it again: flashsmith report",
        "flashsmith bench --suite paper -o records.jsonl --peer FILE.py:NAME",
    ):
        assert asked in words
    assert browser.run("seen('.fact')") == 3


def test_the_filter_acts_on_everything_that_it_stands_over(gpu_data, tmp_path, browser):
    path = tmp_path / "report.html"
    write_page(gpu_data, path)
    timed = [m for m in gpu_data.measurements if isinstance(m.outcome, Timed)]
    wanted = [m for m in timed if "eager" in m.key.config and "opt_softmax" in m.key.config]
    everything = opened(browser, path).run("pointsByChart('#filtered')")
    assert everything == [len(timed)] * 2
    opened(browser, path, "#eager%20opt_softmax")
    assert browser.run("pointsByChart('#filtered')") == [len(wanted)] * 2
    assert browser.run(ROWS) == len(wanted)
    assert browser.run("document.getElementById('count').textContent") == (
        f"{len(wanted)} of {len(gpu_data.measurements)}"
    )


def test_the_filter_narrows_the_predicted_order(gpuless_data, tmp_path, browser):
    write_page(gpuless_data, tmp_path / "r.html")
    opened(browser, tmp_path / "r.html")
    assert browser.run("seen('#filtered tr[data-words]')") == len(CONFIGS)
    opened(browser, tmp_path / "r.html", "#opt_softmax")
    wanted = sum("opt_softmax" in config.short_form() for config in CONFIGS)
    assert browser.run("seen('#filtered tr[data-words]')") == wanted


def test_a_legend_hides_what_is_clicked(gpu_data, tmp_path, browser):
    write_page(gpu_data, tmp_path / "r.html")
    opened(browser, tmp_path / "r.html")
    before = browser.run("seen('#chart0 .scatterlayer .trace')")
    browser.run("document.querySelector('[data-chart=\"0\"]').click()")
    browser.settle()
    assert browser.run("seen('#chart0 .scatterlayer .trace')") == before - 1
    assert browser.console == []


ODD = "<!--<script> </script><b>bold #100% %{x} <a href='#'>link</a> \x1b[31m"


def test_any_text_of_a_record_leaves_the_page_whole(gpu_data, tmp_path, browser):
    peer = [record("paper", f"{ODD} peer", n, us) for n, us in ((1024, 90.0), (4096, 999.0))]
    measurements = [
        replace(m, environment={**m.environment, "compiler": ODD}) for m in gpu_data.measurements
    ]
    data = ReportData((*gpu_data.records, *peer), tuple(measurements), f"{ODD}.jsonl")
    count = write_page(data, tmp_path / "r.html", reproduce=f"flashsmith report '{ODD}'")
    opened(browser, tmp_path / "r.html")
    assert_laid_out(browser)
    assert browser.run(CHARTS) >= count > 0
    assert browser.run(ROWS) == len(measurements)
    assert browser.run("seen('main b:not(.bar), main a')") == 0
    assert browser.run("document.body.textContent.includes('\\x1b')") is False


@pytest.mark.parametrize("fragment", ["#100%", "#%E0%A4%A"])
def test_a_page_opens_whatever_stands_in_its_name_and_behind_it(
    gpu_data, tmp_path, browser, fragment
):
    path = tmp_path / "page #100%.html"
    write_page(gpu_data, path)
    opened(browser, path, fragment)
    assert browser.console == []
    assert browser.run(CHARTS) > 0


def test_a_page_without_data_says_so_in_one_line(tmp_path, browser):
    assert write_page(ReportData((), (), "empty.jsonl"), tmp_path / "r.html") == 0
    opened(browser, tmp_path / "r.html")
    assert browser.run("document.getElementById('empty').textContent") == (
        "empty.jsonl holds nothing that was measured: run flashsmith tune or flashsmith bench -o "
        "FILE, and make the page again."
    )
    assert browser.run("seen('.card, section, input, table')") == 0
    assert browser.console == []
