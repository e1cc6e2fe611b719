"""The mbarrier phase machine: parities, byte counts and what it refuses."""

import numpy as np
import pytest

from flashsmith.base.errors import EmulationError
from flashsmith.emulator.copies.mbarrier import MbarrierTable
from flashsmith.emulator.machine.values import distinct


def ints(*values):
    return np.array(values, np.int64)


@pytest.fixture
def table():
    barriers = MbarrierTable(ctas=3, smem_bytes=256)
    barriers.init(ints(0, 1, 2), ints(8, 8, 8), ints(2, 2, 2))
    return barriers


def test_a_fresh_barrier_passes_parity_one_and_stops_parity_zero(table):
    assert table.parity_done(ints(0, 0), ints(8, 8), ints(1, 0)).tolist() == [True, False]


def test_a_phase_ends_with_its_last_arrival_in_that_block_only(table):
    table.arrive(ints(1, 1), ints(8, 8), ints(1, 1))
    assert table.parity_done(ints(0, 1, 2), ints(8, 8, 8), ints(0, 0, 0)).tolist() == [
        False,
        True,
        False,
    ]
    assert table.pending[1, 0] == 2


def test_bytes_hold_a_phase_open_until_all_have_landed(table):
    table.arrive(ints(0), ints(8), ints(2), tx=ints(4096))
    table.complete_tx(ints(0), ints(8), ints(2048))
    assert not table.parity_done(ints(0), ints(8), ints(0))[0]
    assert table.complete_tx(ints(0), ints(8), ints(2048)).tolist() == [0]
    assert table.parity_done(ints(0), ints(8), ints(0))[0]


def test_bytes_may_land_before_they_are_expected(table):
    table.complete_tx(ints(0), ints(8), ints(64))
    table.arrive(ints(0), ints(8), ints(2), tx=ints(64))
    assert table.phase[0, 0] == 1


def test_the_token_of_an_arrival_names_its_phase(table):
    token = table.arrive(ints(0), ints(8), ints(1))
    assert not table.token_done(ints(0), ints(8), token)[0]
    table.arrive(ints(0), ints(8), ints(1))
    assert table.token_done(ints(0), ints(8), token)[0]


@pytest.mark.parametrize(
    ("action", "says"),
    [
        (lambda t: t.arrive(ints(0), ints(8), ints(3)), "1 more arrivals than the phase waits for"),
        (lambda t: t.arrive(ints(0), ints(16), ints(1)), "no mbarrier was initialised here"),
        (lambda t: t.arrive(ints(0), ints(12), ints(1)), "8 aligned bytes"),
        (lambda t: t.arrive(ints(0), ints(512), ints(1)), "8 aligned bytes"),
        (lambda t: t.init(ints(0), ints(16), ints(0)), "init with count 0"),
        (lambda t: t.parity_done(ints(0), ints(8), ints(2)), "parities are 0 and 1"),
        (lambda t: t.expect_tx(ints(0), ints(8), ints(2**20)), "tx-count 1048576"),
    ],
)
def test_misuse_is_a_fault(table, action, says):
    with pytest.raises(EmulationError, match=says):
        action(table)


def test_an_invalidated_barrier_is_no_barrier(table):
    table.inval(ints(0), ints(8))
    with pytest.raises(EmulationError, match="no mbarrier was initialised"):
        table.arrive(ints(0), ints(8), ints(1))


def test_a_barrier_says_what_it_lacks(table):
    table.arrive(ints(2), ints(8), ints(1), tx=ints(512))
    assert "phase 0 (parity 0) and lacks 1 of 2 arrivals and 512 bytes" in table.describe(2, 8)


def test_distinct_columns_are_sorted_and_come_once():
    rng = np.random.default_rng(3)
    for width in (1, 2, 7, 300):
        rows = rng.integers(-2, 3, (3, width))
        assert np.array_equal(distinct(*rows), np.unique(rows, axis=1))
    assert distinct([], []).shape == (2, 0)
