"""Races of given decode configurations: what is read from a file, raced, and shown."""

import sys
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace

import pytest

from flashsmith.kernels import parse_config
from flashsmith.measure.interleaved import Comparison, Timed
from flashsmith.measure.statistics import ratio_by_round, summarize

pytest.importorskip("torch")
TOOLS = str(Path(__file__).parents[2] / "tools")
FEW = "decode(BF16, 128, 16, 16, 4): slice_512+most_32+stages_3+ctas_2+quick_start+quick_end"
MANY = FEW.replace("stages_3+ctas_2", "stages_2+ctas_3")
KEPT = MANY.replace("ctas_3", "ctas_3+kept_parts")
PAGES = KEPT.replace("kept_parts", "kept_parts+whole_pages")
REFUSED = FEW.replace("ctas_2", "ctas_2+persistent+runs")
DEVICE = SimpleNamespace(arch="sm_90a", name="NVIDIA H200")


@pytest.fixture
def tool(monkeypatch):
    monkeypatch.syspath_prepend(TOOLS)
    import decode_candidates

    yield decode_candidates
    sys.modules.pop("decode_candidates")


def run_of(**times_us):
    """A run whose contenders take so long."""
    first = next(iter(times_us.values()))
    timed = tuple(
        Timed(name, (us,), summarize([us]), ratio_by_round([first], [us]))
        for name, us in times_us.items()
    )
    return Comparison("burst", timed, summarize([1.0]), ())


def test_a_file_has_a_configuration_a_line_each_once_and_comments(tool, tmp_path):
    file = tmp_path / "configs.txt"
    file.write_text(f"# why\n{FEW}\n\n{MANY}  # more ctas\n{FEW}\n", "utf-8")
    assert tool.configs_of(file) == [parse_config(FEW), parse_config(MANY)]


def test_what_is_chosen_comes_first_and_what_does_not_compute_the_cache_is_left_out(tool):
    few, many, kept, pages, refused = map(parse_config, (FEW, MANY, KEPT, PAGES, REFUSED))
    problem = tool.problem_of(*tool.shape_of("32x8192"))
    given = [few, refused, many]
    raced = {
        word: tool.beside_chosen(DEVICE, tool.asked_in(problem, tool.way_of(word)), given)
        for word in ("contiguous", "lengths", "page")
    }
    assert raced["contiguous"] == raced["lengths"] == [kept, few, many]
    assert raced["page"] == [pages, few, many]


def test_rows_say_times_as_fast_as_the_choice_and_as_cudnn_the_fastest_first(tool):
    runs = [run_of(a=100.0, b=80.0, cuDNN=90.0), run_of(a=100.0, b=125.0, cuDNN=90.0)]
    b, c, a = sorted(tool.rows_beside_chosen(runs), key=lambda row: row.split()[-1] != "b")
    assert b.split()[:3] == ["80.0", "125.0", "us"]
    assert "1.0000 x chosen (least 0.8000)  0.9000 x cuDNN" in b
    assert "1.1111 x chosen" in c
    assert a.endswith("a (chosen)")
    assert next(row.split()[-1] for row in tool.rows_beside_chosen(runs)) == "cuDNN"


def test_runs_that_the_time_does_not_allow_are_named(tool, tmp_path, monkeypatch):
    file = tmp_path / "configs.txt"
    file.write_text(FEW, "utf-8")
    asked = []

    def race_given(race, shape, way, configs, place):
        asked.append((shape, way, configs, place))
        return run_of(a=2.0, cuDNN=1.0)

    monkeypatch.setattr(tool, "race_given", race_given)
    monkeypatch.setattr(tool, "compile_given", lambda *_: None)
    told = Namespace(configs=file, shapes="4x65536,1x8192", ways="contiguous", places=2, budget=9.0)
    for begin, count in ((tool.time.monotonic(), 4), (-1e9, 0)):
        race = SimpleNamespace(device=DEVICE, said=[], table=[])
        asked.clear()
        tool.race_file(race, told, begin)
        assert len(asked) == count == 4 - len(race.said)
    assert (asked, len(race.said), race.table) == ([], 4, [])
