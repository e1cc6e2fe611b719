"""The Hopper record on an H200: what is kept of a comparison, and which bars a record meets."""

import importlib
import signal
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from flashsmith.base.dtypes import DType
from flashsmith.config import get_kernel_configs
from flashsmith.measure.environment import Environment
from flashsmith.measure.interleaved import Comparison, Timed
from flashsmith.measure.record import append_records, records_of
from flashsmith.measure.statistics import ratio_by_round, summarize
from flashsmith.problem.attention_problem import AttentionProblem
from flashsmith.tuner.measurement import problem_fields

pytest.importorskip("torch")
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
ENVIRONMENT = Environment(
    *("NVIDIA H200", "sm_90a", 132, "580", "13.0", 1980, 700.0, "nvrtc 13.0.88", "3.12", {}, "0.1"),
    *("abc", False, "2026-11-15T12:00:00+00:00"),
)
CELLS = [
    (d, causal, length)
    for d in (64, 128, 256)
    for causal in (False, True)
    for length in (512, 1024, 2048, 4096, 8192, 16384)
]
FASTER = {"prototype 192x80e0": 1.04, "prototype 128x128": 1.06, "cuDNN": 1.25}


@pytest.fixture
def module(monkeypatch):
    """Imports a file of benchmarks/ as its programs do."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module


def comparison(slower, *, regime="burst", control=1.0):
    """A run in which each contender took `slower` times as long as the first, round by round."""
    base = (100.0, 101.0, 99.0)
    timed = []
    for name, factor in slower.items():
        times = tuple(factor * time for time in base)
        timed.append(Timed(name, times, summarize(times), ratio_by_round(base, times)))
    return Comparison(regime, tuple(timed), summarize([control]), (None,))


def problem_of(cell):
    d, causal, length = cell
    heads = 2048 // d
    return AttentionProblem(16384 // length, heads, heads, length, length, d, DType.BF16, causal)


def cell_records(parts, cell, regime, factors=FASTER, control=1.0):
    run = comparison({"flashsmith": 1.0, **factors}, regime=regime, control=control)
    made = records_of(run, problem_of(cell), ENVIRONMENT, suite="hopper", flops=1e9)
    return parts.kept_records(made, "hopper(…)")


@pytest.fixture
def complete(module):
    """A record that meets every bar."""
    parts = module("hopper_parts")
    variations = module("hopper_variations")
    setting = parts.Setting(ENVIRONMENT, None, frozenset())
    records = []
    for regime in ("burst", "sustained"):
        for cell in CELLS:
            records += cell_records(parts, cell, regime)
    names = ("plain", "fp16", "fp16, bf16 values", "gqa 8:1", "heads first", "odd length")
    cases = dict.fromkeys(names, 1.01) | {"cuDNN bf16": 1.2, "GEMM bf16": 2.0}
    cases |= {"cuDNN fp16": 1.21, "GEMM fp16": 2.02, "plain": 1.0}
    flops = dict.fromkeys(cases, 1e9)
    for what, result in variations.shape_lines(comparison(cases), flops):
        what |= {"suite": "hopper shapes", "d_head": 64, "causal": True, "length": 4096}
        records.append(parts.flat(setting, what, result))
    for check in ("accuracy", "masked rows", "same bits", "two streams"):
        what = {"suite": "hopper checks", "check": check}
        records.append(parts.flat(setting, what, {"ok": True, "of_cudnn": 1.05}))
    what = {"suite": "sanitizer", "tool": "memcheck"}
    clean = {"exit_code": 0, "errors": 0, "summary": "ERROR SUMMARY: 0 errors"}
    records.append(parts.flat(setting, what, clean))
    steps = {step.short_form(): 1.0 for step in get_kernel_configs("hopper-prog")}
    for length in (4096, 16384):
        problem = problem_of((128, False, length))
        run = comparison(steps)
        records += records_of(run, problem, ENVIRONMENT, suite="progression", flops=1e9)
    return records


def missed(bars, records):
    return [bar.text for bar in bars.bars(records) if bar.holds is False]


def test_the_fastest_variant_of_the_prototype_is_kept_with_the_rates_of_all(module):
    ours, rival, cudnn = cell_records(module("hopper_parts"), CELLS[0], "sustained")
    assert (ours.what["name"], ours.what["config"]) == ("flashsmith", "hopper(…)")
    assert (rival.what["name"], rival.what["variant"]) == ("prototype", "192x80e0")
    assert set(rival.result["variants"]) == {"192x80e0", "128x128"}
    assert cudnn.what["name"] == "cuDNN"


def test_a_complete_record_meets_every_bar_also_when_it_is_read_back(module, complete, tmp_path):
    bars = module("hopper_bars")
    assert missed(bars, complete) == []
    append_records(tmp_path / "hopper.jsonl", complete)
    lines = []
    assert bars.show(bars.read(tmp_path / "hopper.jsonl"), lines.append)
    assert lines[-1].startswith("0 of ")


def test_an_empty_record_misses_every_bar(module):
    bars = module("hopper_bars")
    assert all(bar.holds is not True for bar in bars.bars([]))
    assert not bars.show([], str)


@pytest.mark.parametrize(
    ("suite", "change", "bar"),
    [
        ("hopper checks", {"ok": False}, "check: accuracy"),
        ("hopper checks", {"of_cudnn": 1.2}, "error at most 1.1"),
        ("hopper shapes", {"share": 0.9}, "fp16 of plain"),
        ("hopper shapes", {"void": True}, "shapes: controls"),
        ("sanitizer", {"errors": 2}, "memcheck"),
        ("sanitizer", {"exit_code": None}, "memcheck"),
        ("progression", {"void": True}, "ladder at 4096"),
    ],
)
def test_one_bad_line_is_a_missed_bar(module, complete, suite, change, bar):
    changed = [
        replace(r, result={**r.result, **change}) if r.what["suite"] == suite else r
        for r in complete
    ]
    texts = missed(module("hopper_bars"), changed)
    assert any(text.startswith(bar) for text in texts)


def test_a_slow_cell_a_void_cell_and_a_lacking_cell_are_missed_bars(module, complete):
    parts, bars = module("hopper_parts"), module("hopper_bars")
    slow = cell_records(parts, CELLS[3], "burst", {"prototype 128x128": 0.96, "cuDNN": 1.2})
    (text,) = missed(bars, [*complete, *slow])
    assert text == "burst over prototype, every cell at least 0.97"
    void = cell_records(parts, CELLS[3], "sustained", control=1.011)
    assert missed(bars, [*complete, *void]) == ["sustained: controls within 1 %"]
    counted = [b.found for b in bars.bars([*complete, *void]) if "sustained over" in b.text]
    assert [text.split(" over ")[1] for text in counted] == ["35 cells"]  # a void cell is no number
    assert "burst: cells measured of 36" in missed(bars, complete[3:])


def test_a_part_that_dies_or_is_cut_off_is_said_and_cells_are_gone_on_with(module, monkeypatch):
    program = module("hopper_h200")
    asked = []

    def run_apart(work, seconds):
        work()
        return {"ladder": 0, "shapes": "cut off"}.get(asked[-1], -6)

    monkeypatch.setattr(program, "run_apart", run_apart)
    failed = program.run_all(["burst", "checks", "shapes", "ladder"], asked.append, 100.0)
    assert asked == ["burst", "burst", "checks", "shapes", "ladder"]
    assert failed == ["burst: -6", "checks: -6", "shapes: cut off"]


def test_a_process_of_its_own_ends_with_its_code_or_is_cut_off(module):
    run_apart = module("hopper_h200").run_apart
    assert run_apart(int, 60) == 0
    assert run_apart(partial(sys.exit, 3), 60) == 3
    assert run_apart(partial(signal.raise_signal, signal.SIGKILL), 60) == -signal.SIGKILL
    assert run_apart(signal.pause, 0.1) == "cut off"


def test_the_summary_alone_ends_with_exit_code_1_where_bars_are_missed(tmp_path):
    command = [sys.executable, str(BENCHMARKS / "hopper_h200.py"), str(tmp_path)]
    command += ["--parts", "summary"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "")
    assert "MISSED memcheck clean" in done.stdout


def test_every_kind_of_line_is_told_in_one_line_of_the_log(module, complete):
    told = module("hopper_h200").told
    lines = [told("part", record) for record in complete]
    assert all("\n" not in line for line in lines)
    assert any("prototype: tflops" in line and "192x80e0" in line for line in lines)


def test_each_knob_is_moved_alone_or_with_what_it_forces(module):
    knobs = module("hopper_knobs")
    last = get_kernel_configs("hopper-prog")[-1]
    found = {(name, text): other for name, text, other in knobs.moved(last, causal=False)}
    assert {name for name, _ in found} >= {"overlap", "pingpong", "statistics", "scheduler"}
    for (name, _), other in found.items():
        assert other.refusal() is None
        differing = {k for k in last.knobs() if getattr(last, k) != getattr(other, k)}
        assert name in differing
        assert differing <= {name, *knobs.ALSO.get(name, ())}
    assert "l2_sections" not in {name for name, _ in found}
    assert "l2_sections" in {name for name, _, _ in knobs.moved(last, causal=True)}


def test_the_page_states_gains_cycles_and_tensor_use_of_each_step(module, complete):
    page, parts = module("hopper_page"), module("hopper_parts")
    setting = parts.Setting(ENVIRONMENT, None, frozenset())
    steps = get_kernel_configs("hopper-prog")
    problem = problem_of((128, False, 16384))
    # 16 waves of tiles of 128 rows, each over 128 blocks of 128 keys; twice the ideal of 2,048.
    counted = {"cycles": 2 * 2048.0 * 16 * 128, "tensor_pct": 49.7}
    for step in steps:
        what = {"suite": "profile", "name": step.short_form(), **problem_fields(problem)}
        complete.append(parts.flat(setting, what, counted))
    lines = page.ladder(complete).splitlines()
    assert lines[0].startswith("|  | adds | TFLOP/s at 4,096 | × the step before |")
    assert lines[4].startswith("| 3 | n_warpgroups: 2")
    assert lines[4].endswith("| 1.000 | 4096 | 2048 | 50 % | 50 % |")
    assert "NVIDIA H200, driver 580, nvrtc 13.0.88, 2026-11-15, commit abc." in lines
    assert f"{len(steps)}. `{steps[-1].short_form()}`" in lines
    assert page.NOT_MEASURED in page.ladder([])


def test_the_page_states_cells_shapes_demands_and_what_moving_a_knob_does(module, complete):
    page, parts = module("hopper_page"), module("hopper_parts")
    burst = page.cells("burst")(complete).splitlines()
    rates = "| 10 | 10 | 8 | 1.040 | 1.250 | 1.0000 |"
    assert burst[2] == f"| 64 | full | 512 {rates}"
    assert "- over prototype: 1.040 in the geometric mean of 36 cells (1.040 to 1.040)" in burst
    assert "| 64 | causal | 10 | 0.990 |" in page.shapes(complete)
    assert "**no**" not in page.demands(complete)
    what = {"suite": "hopper knobs", "knob": "pingpong", "from": "True", "to": "False"}
    result = {"share": 0.97, "noise": False, "void": False}
    setting = parts.Setting(ENVIRONMENT, None, frozenset())
    moved = parts.flat(setting, {**what, "d_head": 64, "causal": True}, result)
    noise = parts.flat(
        setting, {**what, "d_head": 128, "causal": False}, {**result, "share": 1.001, "noise": True}
    )
    (row,) = page.effects([moved, noise]).splitlines()[2:3]
    assert row == "| `pingpong` | True → False |  | -3.0 % | (+0.1 %) |  |  |  |"
    assert page.effects([]) == page.NOT_MEASURED


def test_the_page_holds_each_fp16_against_its_own_bf16(module):
    page, parts, clocks = (module(f"hopper_{name}") for name in ("page", "parts", "clocks"))
    setting = parts.Setting(ENVIRONMENT, None, frozenset())
    slow = {"share": 0.96, "void": False, "cycles": 1001.0, "sm_mhz": 1577.0}
    slow |= {"power_w": 690.0, "joules": 0.52}
    base = slow | {"share": 1.0, "cycles": 1000.0, "sm_mhz": 1643.0, "joules": 0.5}
    lines = []
    for case in ("cuDNN bf16", "cuDNN fp16", "bf16", "fp16"):
        for regime in ("burst", "load"):
            what = {"suite": "hopper clocks", "case": case, "of": clocks.base_of(case)}
            what |= {"regime": regime, "d_head": 128, "causal": False}
            lines.append(parts.flat(setting, what, slow if "fp16" in case else base))
    numbers = "0.960 | 1.001 | 1,643 → 1,577 | 1,643 → 1,577 | 690 → 690 | +4.0 %"
    ours, cudnn = page.clocks(lines).splitlines()[2:4]
    assert ours == f"| ours | 128 | full | {numbers} |"
    assert cudnn == f"| cuDNN | 128 | full | {numbers} |"
    assert page.clocks([]) == page.NOT_MEASURED


def test_what_fp16_is_held_against(module):
    base_of = module("hopper_clocks").base_of
    assert base_of("fp16, bf16 values") == base_of("fp16") == "bf16"
    assert base_of("GEMM fp16") == "GEMM bf16"
    assert base_of("products alone fp16") == "products alone bf16"


def test_the_page_counts_candidates_and_leaves_void_ones_out(module):
    page, parts = module("hopper_page"), module("hopper_parts")
    setting = parts.Setting(ENVIRONMENT, None, frozenset())
    shares = {"BF16": 1.0, "a": 0.96, "b": 0.94, "void": 0.99}
    lines = [
        parts.flat(
            setting,
            {"case": case, "d_head": 256, "causal": True},
            {"share": share, "void": case == "void"},
        )
        for case, share in shares.items()
    ]
    assert page.candidates(lines).splitlines()[2] == "| 256 | causal | 2 | 0.960 | 0.940 |"
    assert page.candidates([]) == page.NOT_MEASURED


@pytest.mark.parametrize("config", get_kernel_configs("hopper")[::9], ids=str)
def test_products_alone_are_not_serialised(module, config):
    made = module("hopper_floor").products_kernel(config).resources
    assert (made.spill_bytes, made.warnings) == (0, ())
