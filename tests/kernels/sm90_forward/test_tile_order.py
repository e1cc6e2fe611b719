"""The order of tiles: numbers fitted to a GPU are data, with the record that they came from."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from flashsmith.base.dtypes import DType
from flashsmith.kernels import parse_config
from flashsmith.kernels.plans import plan
from flashsmith.kernels.sm90_forward import tile_order
from flashsmith.kernels.sm90_forward.tile_order import SHORT_TILES, fitted
from flashsmith.problem.attention import AttentionProblem

ROOT = Path(__file__).parents[3]
CONFIG = parse_config(
    "hopper(BF16, 128, 2, 128): kv_2+q_4+overlap+early_rescale+stats_SUM+lazy_8+tiles_DYNAMIC"
    "+sections+late_draw+o_smem+regs_232_40"
)
LONG = AttentionProblem(1, 48, 48, 8192, 8192, 128, DType.BF16, causal=True)


@pytest.fixture
def changed(tmp_path, monkeypatch):
    """Lets a test change the file of numbers."""
    data = json.loads(tile_order.FITTED.read_text())

    def change(draw, **numbers):
        for row in data[draw]:
            row.update(numbers)
        path = tmp_path / "fitted.json"
        path.write_text(json.dumps(data))
        monkeypatch.setattr(tile_order, "FITTED", path)
        fitted.cache_clear()

    yield change
    fitted.cache_clear()


def order():
    (launch,) = plan(CONFIG, LONG, sm_count=132)
    return launch.order


def test_sections_hold_the_megabytes_of_the_file(changed):
    # K and V of a head take 4 MB: two heads are a section of 8, eight one of 32.
    assert order().section_heads == 2
    changed("late", section_megabytes=32)
    assert order().section_heads == 8


def test_short_tiles_are_as_many_as_the_file_says(changed):
    assert order().short_tiles == 4  # a third of the usual 13.3
    changed("late", short="none")
    assert order().short_tiles == 0


def test_short_tiles_of_some_heads_come_with_their_sections(changed):
    assert order().early_heads == 0
    changed("late", late_megabytes=40)
    assert order().early_heads == 38


@pytest.mark.parametrize("draw", ["early", "late"])
def test_the_last_numbers_hold_for_all_that_is_left(draw):
    *_, last = fitted(draw)
    assert (last.d_head, last.k_len) == (0, 0)
    assert all(row.short in SHORT_TILES for row in fitted(draw))


def test_the_record_that_the_numbers_came_from_is_there_and_of_that_gpu():
    data = json.loads(tile_order.FITTED.read_text())
    lines = (ROOT / data["record"]).read_text().splitlines()
    ordered = [line for line in map(json.loads, lines) if "sections of" in str(line["what"])]
    assert len(ordered) > 100
    assert {line["environment"]["device"] for line in ordered} == {data["gpu"]}


@pytest.mark.parametrize(
    ("facts", "short"),
    [
        ({"window_left": 1000}, 8),  # rows 0 to 999 see fewer keys than the others
        ({"window_left": 1000, "q_len": 4000}, 0),  # and these stand behind them
        ({"window_left": 1000, "causal": False}, 0),  # here the first rows see the most
        ({"window_left": 8000, "q_len": 1024, "k_len": 1100}, 0),  # no window
    ],
)
def test_in_a_window_the_tiles_of_the_first_rows_come_last(facts, short):
    problem = replace(LONG, **facts)
    (launch,) = plan(CONFIG, problem, sm_count=132)
    if problem.mask.hides_left:
        assert launch.order == tile_order.TileOrder(section_heads=1, short_tiles=short)
    else:
        assert launch.order == tile_order.tile_order(CONFIG, problem, launch.q_tiles, 132)
