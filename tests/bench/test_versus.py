"""Our choice beside peers: ratios by round, the product's own rate, records name the choice."""

from dataclasses import replace

import pytest

from flashsmith.base.dtypes import DType
from flashsmith.bench.suite import Shape
from flashsmith.bench.versus import GEMM, OURS, Versus, computing, records
from flashsmith.cli.verbs.bench import _rows
from flashsmith.kernels import get_kernel_configs
from flashsmith.measure.environment import environment_of
from flashsmith.measure.interleaved import Comparison, Timed
from flashsmith.measure.statistics import ratio_by_round, summarize
from flashsmith.problem.attention import AttentionProblem
from flashsmith.runtime.emulated import EmulatedDevice
from flashsmith.tuner.choose.choice import Choice

PROBLEM = AttentionProblem(2, 3, 3, 1000, 1000, 128, DType.BF16)
CONFIG = get_kernel_configs("prog")[-1]
ENVIRONMENT = environment_of(EmulatedDevice("sm_90a"))


@pytest.fixture
def found():
    times = {OURS: (100.0, 200.0, 100.0), "cuDNN": (120.0, 220.0, 150.0), GEMM: (1400.0,) * 3}
    timed = tuple(
        Timed(name, sample, summarize(sample), ratio_by_round(times[OURS], sample))
        for name, sample in times.items()
    )
    choice = Choice(CONFIG, "rule", "the first")
    return Versus(Shape("x", PROBLEM), choice, Comparison("burst", timed, summarize([1.0]), ()))


def test_the_ratio_is_taken_inside_the_rounds(found):
    (peer,) = found.peers
    ratio = found.times_as_fast(peer)
    assert ratio.median == pytest.approx(1.2)
    assert ratio.p20 < 1.2 < ratio.p80


def test_records_state_the_choice_and_the_products_own_rate(found):
    made = {record.what["name"]: record for record in records(found, ENVIRONMENT, "quick")}
    assert made[OURS].what["config"] == CONFIG.short_form()
    assert made[OURS].what["suite"] == "quick"
    assert made[OURS].result["tflops"] == pytest.approx(4 * 6 * 1000 * 1000 * 128 / 100e-6 / 1e12)
    assert made[GEMM].result["tflops"] == pytest.approx(2 * 8192**3 / 1400e-6 / 1e12)
    assert "config" not in made["cuDNN"].what


def test_a_set_is_timed_beside_the_peers_each_configuration_for_itself():
    configs = get_kernel_configs("prog")[:2]
    times = {c.short_form(): (100.0 / n,) * 3 for n, c in enumerate(configs, start=1)}
    times |= {"cuDNN": (200.0,) * 3, GEMM: (1400.0,) * 3}
    timed = tuple(
        Timed(name, sample, summarize(sample), summarize([1.0])) for name, sample in times.items()
    )
    comparison = Comparison("burst", timed, summarize([1.0]), ())
    choice = Choice(configs[0], "given", "it was given")
    found = Versus(Shape("x", PROBLEM), choice, comparison, n_ours=2)
    assert [peer.name for peer in found.peers] == ["cuDNN"]
    rows = _rows(found)
    assert [row["config"] for row in rows] == [c.short_form() for c in configs]
    assert [row["times_as_fast"] for row in rows] == [2.0, 4.0]
    made = [record.what["name"] for record in records(found, ENVIRONMENT, "quick")]
    assert made == [*(c.short_form() for c in configs), "cuDNN", GEMM]


def test_a_configuration_is_timed_on_problems_of_its_width_and_type():
    assert computing([CONFIG], PROBLEM) == []
    half = replace(PROBLEM, dtype=DType.FP16)
    assert computing([CONFIG], half) == [CONFIG]
    assert computing([CONFIG], replace(half, d_head=64)) == []
