"""README and docs are what the committed records say, and the pieces they are made of."""

import re
import xml.etree.ElementTree as ElementTree
from itertools import pairwise
from pathlib import Path

import pytest
from benchmarks import figures
from pages.svg import Panel, curves_svg, panels_svg
from pages.tables import (
    NOT_MEASURED,
    beside_fa3_table,
    between_marks,
    compile_seconds_table,
    knob_table,
    ladder_table,
    peers_table,
    spills_table,
    winners_table,
)
from report_records import CONFIGS, record

from flashsmith.base.errors import DamagedFile
from flashsmith.kernels import get_kernel_configs
from flashsmith.measure.record import Record, read_records
from flashsmith.report.winners import winners

SVG = "{http://www.w3.org/2000/svg}"


def test_a_page_is_as_the_records_say():
    # One test for all: to know their names is to make them, in every worker that collects.
    for path, text in figures.pages().items():
        written = (Path(figures.ROOT) / path).read_text(encoding="utf-8")
        assert written == text, f"write {path} again: make figures"


@pytest.mark.parametrize(
    ("key", "page"), [("prog", "sm80_forward.md"), ("hopper-prog", "sm90_forward.md")]
)
def test_the_page_of_a_ladder_explains_every_knob_that_a_step_moves(key, page):
    text = (Path(figures.ROOT) / "docs/kernels" / page).read_text(encoding="utf-8")
    moved = {
        name
        for before, after in pairwise(get_kernel_configs(key))
        for name in after.knobs()
        if getattr(before, name) != getattr(after, name)
    }
    assert moved
    assert not [name for name in moved if f"`{name}" not in text]


def test_the_page_on_eager_loading_says_what_its_record_says():
    """It pays at every measured length, and not most on the longest."""
    records = figures.gather(sorted(figures.RECORDS.glob("*.jsonl"))).records
    gains = re.findall(r"([\d.]+)×", knob_table(records, "eager_load_blocks"))
    assert len(gains) == 6
    assert min(map(float, gains)) > 1
    assert float(gains[-1]) == min(map(float, gains))
    text = " ".join((Path(figures.ROOT) / figures.EAGER).read_text(encoding="utf-8").split())
    assert "it pays at every length that was measured, and not most on the longest" in text


def test_a_knob_that_was_not_timed_with_both_values_is_not_measured():
    assert knob_table([], "eager_load_blocks") == NOT_MEASURED


def test_a_table_has_a_row_for_every_peer_and_a_column_for_every_length():
    records = [
        record("a", name, length, us)
        for length in (1024, 4096)
        for name, us in ((CONFIGS[0].short_form(), 100.0), ("cuDNN", 120.0), ("torch FA2", 150.0))
    ]
    table = peers_table(records, ("cuDNN", "FlashAttention-2 (torch)"))
    lines = table.splitlines()
    assert lines[0] == "| d_head | mask | against | 1,024 | 4,096 |"
    assert lines[2].startswith("| 128 | full | cuDNN |")
    assert lines[-1] == "- kernels: `sm80_forward`"
    assert "(1.20×)" in lines[2]
    assert "(1.50×)" in lines[3]
    assert "- 1.20× cuDNN in the geometric mean over 2 shapes" in table
    assert peers_table(records, ("cuDNN",), "sustained") == NOT_MEASURED


def test_a_table_never_mixes_two_families_of_kernels():
    hopper = get_kernel_configs("hopper-prog")[0]
    runs = [
        [record("a", c.short_form(), 1024, us, date=d), record("a", "cuDNN", 1024, 90.0, date=d)]
        for c, us, d in ((CONFIGS[0], 80.0, "2026-11-16"), (hopper, 60.0, "2026-11-15"))
    ]
    fastest = peers_table([*runs[0], *runs[1]], ("cuDNN",))
    assert "(1.50×)" in fastest
    assert "(1.12×)" not in fastest
    older = peers_table([*runs[0], *runs[1]], ("cuDNN",), family=CONFIGS[0].NAME)
    assert "(1.12×)" in older
    assert older.endswith("- kernels: `sm80_forward`")


def test_a_ladder_says_what_its_steps_bring_or_that_nobody_measured_them():
    run = [
        record("progression", c.short_form(), 4096, 1000.0 / n, ratio=(float(n), n, n))
        for n, c in enumerate(CONFIGS, start=1)
    ]
    table = ladder_table(CONFIGS, run).splitlines()
    assert "| 2 | swizzled: True |" in table[3]
    assert "| 2.000 |" in table[3]
    assert "| 1.500 |" in table[4]
    assert "NVIDIA H200, 2026-11-15, commit abc: batch 2" in table[-1]
    assert f"The start is `{CONFIGS[0].short_form()}`." in table[-3]
    assert "All steps: sm80_forward, dtype FP16, d_head 128, B_r 64, B_c 64" in table[-3]
    assert NOT_MEASURED in ladder_table(CONFIGS, run[:-1])


def test_flash_attention_3_is_shown_wherever_records_hold_it():
    grid, free, served = map(read_records, figures.BESIDE_FA3)
    rows = beside_fa3_table(grid, free, served).splitlines()[2:]
    means = {line.split("|")[1].split("]")[0].strip(" ["): line.split("|")[3] for line in rows}
    assert list(means) == [
        *("gradients, the same bits every time", "gradients, sums in any order"),
        *("decoding, contiguous caches", "decoding, pages of 16 and 64 tokens"),
    ]
    only = [r for r in served if r.what["name"] != "FlashAttention_3"]
    assert len(beside_fa3_table([], free, only).splitlines()) == 3
    assert beside_fa3_table([], [], []) == NOT_MEASURED
    ours = CONFIGS[0].short_form()
    forward = [record("a", ours, 1024, 100.0), record("a", "flash-attn 3", 1024, 110.0)]
    assert "| FlashAttention-3 |" in peers_table(forward, figures.PEERS)


def test_marks_that_are_not_there_are_said():
    page = "a\n<!-- x: begin -->\nold\n<!-- x: end -->\nb\n"
    assert between_marks(page, "x", r"new \1") == page.replace("old", r"new \1")
    with pytest.raises(DamagedFile, match="no place <!-- y: begin -->"):
        between_marks(page, "y", "")


def test_a_picture_is_svg_with_a_line_for_every_name():
    lines = {"ours & co": [(1024, 300.0), (4096, 400.0)], "peer": [(1024, 200.0), (4096, 250.0)]}
    text = panels_svg([Panel("d", lines)] * 2, {"ours & co": "#000", "peer": "#111"}, across=1)
    root = ElementTree.fromstring(text)
    assert len(root.findall(f".//{SVG}polyline")) == 4
    assert "prefers-color-scheme:dark" in text
    first, second = root.findall(f".//{SVG}polyline")[0].get("points").split()
    height = [float(point.partition(",")[2]) for point in (first, second)]
    assert height[1] < height[0]


def test_the_tuners_winners_have_a_table_of_rates(gpu_data):
    table = winners_table(winners(gpu_data.measurements)).splitlines()
    assert table[0] == "| d_head | mask | 512 |"
    flops = 4 * 1 * 3 * 512 * 512 * 128
    assert table[2] == f"| 128 | full | {flops / 51e-6 / 1e12:.0f} |"
    assert table[-1] == "- kernels: `sm80_forward`"
    assert winners_table([]) == NOT_MEASURED


def test_spills_are_listed_by_configuration_and_architecture_with_the_compiler_named():
    environment = {"compiler": "nvrtc 99.1"}
    amounts = {("a", "sm_80"): 48, ("a", "sm_90a"): 0, ("b", "sm_80"): 0, ("b", "sm_90a"): None}
    rows = [
        Record({"suite": "compile", "name": name, "arch": arch}, {"spill_bytes": n}, environment)
        for (name, arch), n in amounts.items()
    ]
    summary = Record({"suite": "compile", "name": "summary"}, {"rows": 4}, environment)
    lines = spills_table([*rows, summary]).splitlines()
    assert lines[0] == "| sm_80 | sm_90a |"
    assert lines[2] == "| 48 | 0 |"
    assert lines[-1] == "All: a. nvrtc 99.1; the other 1 configurations spill nothing."


def test_seconds_of_compiling_are_by_family_and_width_and_only_of_kernels_that_were_compiled():
    begin = "hopper_bwd(BF16, 64): ds_2+turns+fold+early_dv+late_fences"
    seconds = {begin: 3.0, f"{begin}+sections": 1.0, f"{begin}+masks_first": 0.1}
    seconds |= {"bwd(BF16, 64): dkv_128_64_8+dq_128_64_8+dkv_buffer+dq_buffer": 0.5}
    rows = [
        Record({"name": n, "part": "compile"}, {"compile_s": s}, {}) for n, s in seconds.items()
    ]
    first = {"name": "first gradients, d 64 full, nothing compiled", "part": "first"}
    rows.append(Record(first, {"seconds": 1.5}, {}))
    lines = compile_seconds_table(rows).splitlines()
    assert lines[2:] == [
        "| wgmma | 64 | 2 | 2.00 | 3.00 | 1.50 (full) |",
        "| mma.sync | 64 | 1 | 0.50 | 0.50 |  |",
    ]
    with pytest.raises(DamagedFile, match="no width and mask"):
        compile_seconds_table([Record(first | {"name": "first"}, {"seconds": 1.5}, {})])


def test_curves_are_drawn_from_0_to_the_highest():
    curves = {"ours": [4.0, 2.0, 1.0], "peer": [4.0, 2.5, 1.5]}
    text = curves_svg(curves, {"ours": "#000", "peer": "#111"}, title="loss")
    root = ElementTree.fromstring(text)
    ours, peer = (line.get("points").split() for line in root.findall(f".//{SVG}polyline"))
    assert ours[0] == peer[0]
    assert len(ours) == len(peer) == 3
    heights = [float(point.split(",")[1]) for point in ours]
    assert heights == sorted(heights)  # a lower loss lies lower, where y is larger
    assert root.find(f"{SVG}title").text == "loss: ours, peer"
