"""`flashsmith.tune`: what takes part, in which order, within which budget, and what is picked."""

from contextlib import contextmanager
from dataclasses import replace

import pytest
from beside import HERE
from tuning_process import CONFIGS, PROBLEM, TARGET

import flashsmith
from flashsmith.base.errors import ArgumentError, ArgumentTypeError, ConfigError
from flashsmith.cli.verbs.tune_report import write_charts
from flashsmith.kernels.parse import parse_config
from flashsmith.tuner.choose.measured import SHIPPED_FOLDER
from flashsmith.tuner.run import candidates, tune
from flashsmith.tuner.run.candidates import default_configs
from flashsmith.tuner.run.tuner import Tuner
from flashsmith.tuner.store.exchange import read_lines
from flashsmith.tuner.workers.pool import WorkerPool


class MadeUp:
    """Machines whose GPU gives a time made up from a configuration's text."""

    def __init__(self, gpu=TARGET.gpu, device=TARGET.device):
        self.gpu, self.device = gpu, device

    @contextmanager
    def open(self):
        with WorkerPool(2, "quick:evaluate", [HERE] * 2) as pool:
            yield replace(TARGET, gpu=self.gpu, device=self.device), pool


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """No kernel is compiled for checks that are not made."""
    monkeypatch.setattr("flashsmith.tuner.run.tuner.compile_for_screening", lambda *a: None)
    monkeypatch.setattr("flashsmith.tuner.run.tuner.compile_for_gate", lambda *a: None)


def tuned(tmp_path, configs=CONFIGS[:5], problems=PROBLEM, gpu=TARGET.gpu, **more):
    store = tmp_path / "r.sqlite"
    return flashsmith.tune(problems, configs, machines=MadeUp(gpu), store=store, **more)


def test_the_pick_is_the_fastest_and_a_second_run_measures_nothing(tmp_path):
    steps = {}
    found = tuned(tmp_path, on_progress=lambda step, done, total, _: steps.update({step: done}))
    fastest = min(found.results[PROBLEM], key=lambda r: r.measurement.outcome.median_us)
    assert found.picks == {PROBLEM: fastest.candidate.config}
    assert found.measured > 5  # screened, then raced
    assert steps == {"compiling for sm_90a": 5, "screening": 5, "racing": 1}
    again = tuned(tmp_path)
    assert again.picks == found.picks
    assert again.measured == 0


def test_a_pick_has_the_bits_that_are_asked_for(tmp_path):
    model = next(c for c in CONFIGS if c.optimized_softmax)
    found = tuned(tmp_path, CONFIGS[:6], same_bits_as=model.short_form())
    assert found.picks[PROBLEM].optimized_softmax
    assert model in {r.candidate.config for r in found.results[PROBLEM]}


def test_a_budget_ends_compiling_too_and_what_was_reached_is_picked_from(tmp_path, monkeypatch):
    compiled = []
    whole = candidates.compile_many
    monkeypatch.setattr(
        candidates,
        "compile_many",
        lambda jobs, **more: compiled.extend(jobs) or whole(jobs, **more),
    )
    monkeypatch.setattr(tune, "available_cores", lambda: 1)
    monkeypatch.setattr(Tuner, "is_screening_over", lambda self, after: len(compiled) >= 4)
    found = tuned(tmp_path, CONFIGS[:9], budget="1h")
    assert len(compiled) == 4
    assert found.unreached == 5
    assert found.picks[PROBLEM] is not None
    write_charts(found, tmp_path / "page.html")
    assert "5 candidates were not reached" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_within_a_budget_the_predicted_come_first_and_counting_has_its_share(tmp_path, monkeypatch):
    asked = {}

    def counted_places(pairs, arch, sms, *, until, progress):
        asked["until"] = until
        return {pair: n for n, pair in enumerate(reversed(pairs), start=1)}

    monkeypatch.setattr(tune, "counted_places", counted_places)
    monkeypatch.setattr(tune, "available_cores", lambda: 1)
    monkeypatch.setattr("time.time", lambda: 1000.0)
    parts = []
    whole = Tuner.screen

    def screen(self, part):
        parts.append([candidate.config for candidate in part])
        return whole(self, part)

    monkeypatch.setattr(Tuner, "screen", screen)
    tuned(tmp_path, CONFIGS[:5], budget=100.0)
    assert asked["until"] == 1025.0
    assert parts == [CONFIGS[4:2:-1], CONFIGS[2:0:-1], CONFIGS[:1]]


@pytest.mark.parametrize(("seconds_a_part", "parts"), [(1.0, 5), (30.0, 3), (60.0, 1)])
def test_no_part_begins_that_would_end_after_the_budget(
    tmp_path, monkeypatch, seconds_a_part, parts
):
    """By a clock that moves while a part is compiled and verified, and stands still else."""
    now = [1000.0]
    begun = []

    def screen(self, part):
        begun.append(now[0])
        now[0] += seconds_a_part
        return {}

    monkeypatch.setattr("time.time", lambda: now[0])
    monkeypatch.setattr(tune, "available_cores", lambda: 1)
    monkeypatch.setattr(tune, "counted_places", lambda *a, **k: {})
    monkeypatch.setattr(tune, "compiled_candidates", lambda part, target, **more: part)
    monkeypatch.setattr(Tuner, "screen", screen)
    machines, store = MadeUp(device="emulator"), tmp_path / "r.sqlite"
    flashsmith.tune(PROBLEM, CONFIGS[:5], machines=machines, store=store, budget=100.0)
    assert len(begun) == parts
    assert now[0] <= 1100.0


def test_without_configurations_all_kernels_of_the_gpu_take_part():
    names = {type(config).NAME for config in default_configs("sm_90a")}
    assert names == {"sm80_forward", "sm90_forward"}
    assert {type(config).NAME for config in default_configs("sm_80")} == {"sm80_forward"}


def test_the_shipped_winner_takes_part_and_is_screened_first(tmp_path, monkeypatch):
    shipped = read_lines(SHIPPED_FOLDER / "nvidia_h200.jsonl")
    best = min(
        (m for m in shipped if m.key.problem.d_head == 128 and not m.key.problem.causal),
        key=lambda m: m.outcome.median_us,
    )
    order = []

    def compiled(pairs, target, **more):
        order.extend(pairs)
        return []

    monkeypatch.setattr(tune, "compiled_candidates", compiled)
    monkeypatch.setattr(tune, "counted_places", lambda *a, **k: {})
    tuned(tmp_path, None, best.key.problem, gpu=best.key.gpu, budget="1m")
    assert parse_config(best.key.config) in [config for config, _ in order[:3]]
    assert len(order) > 50


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"budget": "90"}, ArgumentError, "budget is '90'; it must be a time above 0"),
        ({"budget": -1}, ArgumentError, "budget is -1; it must be a time above 0"),
        ({"problems": ()}, ArgumentTypeError, "problems is .*; it must be an AttentionProblem"),
        ({"problems": "4096"}, ArgumentTypeError, "problems is .*; it must be an AttentionProblem"),
        (
            {"problems": replace(PROBLEM, d_head=256)},
            ConfigError,
            "None of the 5 configurations is for a forward pass of BF16 and d_head 256",
        ),
    ],
)
def test_what_cannot_be_tuned_is_refused_by_name(arguments, error, says, tmp_path):
    with pytest.raises(error, match=says):
        tuned(tmp_path, **arguments)
