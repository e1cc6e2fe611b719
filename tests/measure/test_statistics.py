"""Statistics of rounds: medians, spread, and ratios taken where both sides were measured."""

import itertools
from collections import Counter

import pytest

from flashsmith.base.errors import ArgumentError
from flashsmith.measure.gpu_state import GpuMonitor, GpuState, clocks_moved
from flashsmith.measure.interleaved import Comparison, Timed, rotations
from flashsmith.measure.statistics import geometric_mean, ratio_by_round, summarize


def test_a_summary_has_the_middle_and_the_fifths():
    summary = summarize([5.0, 1.0, 2.0, 4.0, 3.0, 6.0])
    assert (summary.median, summary.p20, summary.p80, summary.rounds) == (3.5, 2.0, 5.0, 6)
    assert summary.spread == pytest.approx(3.0 / 3.5)


def test_a_ratio_is_taken_within_rounds_so_that_a_slower_moment_cancels():
    baseline = [100.0, 200.0, 400.0]  # the GPU slowed down while measuring
    twice_as_fast = [50.0, 100.0, 200.0]
    ratio = ratio_by_round(baseline, twice_as_fast)
    assert (ratio.median, ratio.spread) == (2.0, 0.0)


def test_ratios_of_different_rounds_are_refused():
    with pytest.raises(ArgumentError, match="2 and 1 rounds were given"):
        ratio_by_round([1.0, 2.0], [1.0])


def test_nothing_has_no_summary():
    with pytest.raises(ArgumentError, match="at least one round"):
        summarize([])
    with pytest.raises(ArgumentError, match="at least one value"):
        geometric_mean([])


def test_the_geometric_mean_of_a_ratio_and_its_inverse_is_one():
    assert geometric_mean([1.25, 0.8]) == pytest.approx(1.0)


def test_every_contender_takes_every_place():
    orders = rotations(4, 16)
    for place in range(4):
        assert sorted(order[place] for order in orders) == sorted(list(range(4)) * 4)
    assert all(sorted(order) == [0, 1, 2, 3] for order in orders)


@pytest.mark.parametrize("count", [2, 4, 5, 6, 7])
def test_every_contender_runs_behind_every_other_equally_often(count):
    orders = rotations(count, 2 * count)
    pairs = Counter(pair for order in orders for pair in itertools.pairwise(order))
    assert len(pairs) == count * (count - 1)
    assert set(pairs.values()) == {2}
    assert all(sorted(order) == list(range(count)) for order in orders)


def comparison(control):
    same = Timed("same", (1.0,), summarize([1.0]), summarize([1.002]))
    faster = Timed("faster", (1.0,), summarize([1.0]), summarize([1.05]))
    return Comparison("burst", (same, faster), summarize(control), (None,))


def test_a_control_that_is_off_by_more_than_one_percent_voids_the_run():
    assert comparison([1.011]).is_void
    assert comparison([0.989]).is_void
    assert not comparison([1.009]).is_void


def test_a_difference_below_the_controls_own_spread_is_noise():
    run = comparison([0.996, 1.0, 1.004])
    assert [run.is_noise(timed) for timed in run.timed] == [True, False]


def state(sm_mhz):
    return GpuState(sm_mhz, 3201, 700.0, 60)


def test_clocks_that_moved_are_flagged():
    assert clocks_moved([state(1980), None, state(1755)])
    assert not clocks_moved([state(1980), state(1965)])
    assert not clocks_moved([None, None])


def test_without_nvml_every_reading_is_none():
    monitor = GpuMonitor("no such bus")
    assert (monitor.read(), monitor.power_limit_w(), monitor.max_sm_mhz()) == (None, None, None)
    assert monitor.driver_version() == ""
