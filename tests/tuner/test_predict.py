"""The predicted order: what moves a configuration, how an order is judged, and when it is used."""

import dataclasses
import json
import math
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flashsmith.arch import get as get_arch
from flashsmith.base.dtypes import DType
from flashsmith.base.errors import ArgumentError
from flashsmith.cli.main import app
from flashsmith.kernels import get_kernel_configs
from flashsmith.measure.facts import Facts
from flashsmith.problem.attention import AttentionProblem
from flashsmith.tuner.run import predict
from flashsmith.tuner.run.counting import in_predicted_order, predicted_places, sm_count_of

CONFIG = get_kernel_configs("64,32")[0]
PROBLEM = AttentionProblem(4, 15, 15, 4000, 4000, 128, DType.BF16)
FACTS = Facts(128, 0, 32768, 4, "registers", 1700.0, 0.15, 0.0, 16.0, 864.0, 0.0)
RECORD = Path(__file__).parents[2] / "benchmarks" / "results" / "h200" / "tune.jsonl"


def cycles(problem=PROBLEM, sm_count=132, config=CONFIG, **changes):
    facts = Facts(**{name: getattr(FACTS, name) for name in FACTS.__slots__} | changes)
    return predict.predicted_cycles(config, problem, facts, get_arch("sm_90a"), sm_count)


@pytest.mark.parametrize(
    ("name", "worse"),
    [("instructions", 2600.0), ("shared_cycles", 1700.0), ("spill_bytes", 56)],
)
def test_more_work_of_any_resource_is_predicted_slower(name, worse):
    assert cycles(**{name: worse}) > cycles()


def test_tensor_instructions_of_four_warps_are_predicted_faster():
    assert cycles(group_share=1.0) < cycles()


def test_a_block_more_for_each_sm_hides_waits():
    assert cycles(blocks_per_sm=4) < cycles(blocks_per_sm=2)


def test_a_wave_that_is_not_full_costs_a_whole_one():
    fits = AttentionProblem(1, 132 * 4, 132 * 4, 64, 4000, 128, DType.BF16)
    spills_over = AttentionProblem(1, 132 * 4 + 1, 132 * 4 + 1, 64, 4000, 128, DType.BF16)
    assert cycles(spills_over) == 2 * cycles(fits)


def test_tiles_that_are_split_cost_the_part_of_a_wave_that_they_fill():
    split = next(c for c in get_kernel_configs("hopper") if c.d_head == 128 and c.split_last)
    half = AttentionProblem(1, 33, 33, 256, 16384, 128, DType.BF16)
    whole = split.replace(split_last=False)
    assert cycles(half, config=split, blocks_per_sm=1) == pytest.approx(
        cycles(half, config=whole, blocks_per_sm=1) / 2
    )


def test_a_kernel_that_could_not_be_counted_is_last():
    assert cycles(instructions=None) == math.inf


def test_every_known_architecture_has_rates_and_a_number_of_sms():
    from flashsmith.arch import ARCHES

    assert {arch.name for arch in ARCHES} == set(predict.TENSOR_RATES)
    assert sm_count_of("NVIDIA H200", "sm_90a") == 132
    assert all(sm_count_of("", arch.name) > 10 for arch in ARCHES)


def test_the_order_is_judged_by_ranks_and_by_the_best_of_its_first_five():
    times = [10.0, 11.0, 12.0, 13.0, 14.0, 15.0, 16.0]
    right = predict.quality([1, 2, 3, 4, 5, 6, 7], times)
    assert (right.rank_correlation, right.top_5_regret) == (pytest.approx(1.0), 0.0)
    turned = predict.quality([7, 6, 5, 4, 3, 2, 1], times)
    assert turned.rank_correlation == pytest.approx(-1.0)
    assert turned.top_5_regret == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("changes", "limit"),
    [
        ({"shared_cycles": 9e4}, "shared memory"),
        ({"instructions": 9e5}, "issuing instructions"),
        ({"shared_cycles": 1.0, "instructions": 1.0}, "tensor cores"),
        ({"spill_bytes": 9000}, "waits"),
    ],
)
def test_a_place_knows_the_quantity_that_it_follows_from_and_what_limits(changes, limit):
    facts = dataclasses.replace(FACTS, **changes)
    other = get_kernel_configs("64,32")[1]
    slower = dataclasses.replace(facts, spill_bytes=facts.spill_bytes + 1000)
    pairs = [(other, PROBLEM), (CONFIG, PROBLEM)]
    places = predicted_places(pairs, {CONFIG: facts, other: slower}, "sm_90a", 132)
    first, second = places[CONFIG, PROBLEM], places[other, PROBLEM]
    assert (first, first.cycles_over_first, first.limit) == (1, 1.0, limit)
    assert second == 2
    assert second.cycles_over_first > 1


def test_what_could_not_be_counted_has_a_place_and_no_quantity():
    facts = dataclasses.replace(FACTS, instructions=None)
    (place,) = predicted_places([(CONFIG, PROBLEM)], {CONFIG: facts}, "sm_90a", 132).values()
    assert (place, place.limit) == (1, "")
    assert math.isnan(place.cycles_over_first)


def test_the_best_ten_of_each_problem_come_before_the_rest():
    configs = get_kernel_configs("64,64")[:12]
    other = AttentionProblem(1, 15, 15, 512, 512, 128, DType.BF16)
    facts = {
        c: Facts(128, 0, 0, 4, "", 1000.0 + n, 0, 0, 0, 864.0, 0) for n, c in enumerate(configs)
    }
    pairs = [(c, p) for p in (PROBLEM, other) for c in reversed(configs)]
    places = predicted_places(pairs, facts, "sm_90a", 132)
    assert [places[c, other] for c in configs] == list(range(1, 13))
    ordered = in_predicted_order(pairs, places)
    assert [problem for _, problem in ordered] == [PROBLEM] * 10 + [other] * 10 + [PROBLEM] * 2 + [
        other
    ] * 2
    assert [config for config, _ in ordered[:10]] == configs[:10]


def run(*arguments):
    ran = CliRunner().invoke(app, ["predict", *arguments, "--json"])
    if ran.exception and not isinstance(ran.exception, SystemExit):
        raise ran.exception
    return json.loads(ran.stdout)


def test_the_verb_orders_a_set_by_prediction():
    rows = run("64,32", "--seq-lens", "512")
    assert [row["predicted_place"] for row in rows] == list(range(1, 9))
    assert all("opt_softmax" in row["config"] for row in rows[:4])


def test_records_that_are_not_there_are_named():
    with pytest.raises(ArgumentError, match=r"missing.jsonl.*does not exist.*tune --export"):
        run("--against", "missing.jsonl")


@pytest.mark.parametrize(
    "given",
    [
        *(["--seq-lens", "4096"], ["--d-heads", "128"], ["--batch", "4"], ["--heads", "16"]),
        *(["--kv-heads", "4"], ["--causal"], ["--both-masks"], ["--dtype", "bf16"]),
    ],
)
def test_a_problem_is_refused_beside_records_even_if_it_is_the_one_without_options(given):
    with pytest.raises(ArgumentError, match=f"^{given[0]} is given with --against, whose records"):
        run("--against", str(RECORD), *given)


def test_too_few_times_are_no_judgement(tmp_path):
    path = tmp_path / "few.jsonl"
    path.write_text("")
    with pytest.raises(ArgumentError, match="no problem with 3 or more timed"):
        run("--against", str(path))


def test_the_prediction_is_used_as_long_as_its_regret_on_the_record_is_small():
    # A part of the set, to count its events in seconds; the whole is in docs/tuning.md.
    rows = run("64,32+128,64", "--against", str(RECORD))
    worst = max(row["top_5_regret"] for row in rows)
    assert worst <= predict.ALLOWED_REGRET
