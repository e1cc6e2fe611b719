"""Our choice beside peers: ratios by round, the product's own rate, records name the choice."""

import pytest

from flashsmith.base.dtypes import DType
from flashsmith.bench.suite import Shape
from flashsmith.bench.versus import GEMM, OURS, Versus, records
from flashsmith.kernels import get_kernel_configs
from flashsmith.measure.environment import environment_of
from flashsmith.measure.interleaved import Comparison, Timed
from flashsmith.measure.statistics import ratio_by_round, summarize
from flashsmith.problem.attention import AttentionProblem
from flashsmith.runtime.emulated import EmulatedDevice
from flashsmith.tuner.choose.choice import Choice

PROBLEM = AttentionProblem(2, 3, 3, 1000, 1000, 128, DType.BF16)
CONFIG = get_kernel_configs("prog")[-1]


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
    environment = environment_of(EmulatedDevice("sm_90a"))
    made = {record.what["name"]: record for record in records(found, environment, "quick")}
    assert made[OURS].what["config"] == CONFIG.short_form()
    assert made[OURS].what["suite"] == "quick"
    assert made[OURS].result["tflops"] == pytest.approx(4 * 6 * 1000 * 1000 * 128 / 100e-6 / 1e12)
    assert made[GEMM].result["tflops"] == pytest.approx(2 * 8192**3 / 1400e-6 / 1e12)
    assert "config" not in made["cuDNN"].what
