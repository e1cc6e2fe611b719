"""The search of large spaces: starts where it is told, builds what it asks for, and finds more."""

import pytest

from flashsmith.arch import get as get_arch
from flashsmith.base.dtypes import DType
from flashsmith.kernels import get_kernel_configs

pytest.importorskip("optuna", reason="Optuna is an optional extra")
from flashsmith.tuner.run.optuna_search import AT_ONCE, search

TUNE = [c for c in get_kernel_configs("tune") if c.dtype is DType.BF16]
JOINED = [*TUNE[:4], *(c for c in get_kernel_configs("hopper") if c.dtype is DType.BF16)]


def is_legal(config):
    return config.refusal() is None and config.runs_on(get_arch("sm_90a").name)


def made_up_us(config):
    """Best at tiles of 128 by 128, eight warps and no double buffer: not in the tuning set."""
    return (
        100.0
        + abs(config.tile_q - 128) / 4
        + abs(config.tile_k - 128) / 4
        + 9.0 * (config.threads != 256)
        + 5.0 * getattr(config, "mma_double_buffer_loads", True)
    )


def recorded(batches):
    def measure(configs):
        batches.append(list(configs))
        return {config: made_up_us(config) for config in configs}

    return measure


@pytest.mark.parametrize("start", [TUNE, JOINED], ids=["one family", "two families"])
def test_it_measures_what_it_asks_for_once_and_only_what_can_be_built(start):
    batches = []
    found = search(start, recorded(batches), is_legal, trials=60)
    asked = [config for batch in batches for config in batch]
    assert len(asked) == len(set(asked)) == len(found) <= 60
    assert all(is_legal(config) for config in asked)
    assert asked[: min(len(start), 60)] == start[:60]
    assert max(map(len, batches)) <= AT_ONCE
    assert {c.dtype for c in asked} == {DType.BF16}


def test_it_finds_what_the_start_does_not_hold():
    found = search(TUNE[:8], recorded([]), is_legal, trials=120)
    assert min(found.values()) < min(map(made_up_us, TUNE))


def test_the_same_times_give_the_same_configurations():
    first, second = (list(search(TUNE[:8], recorded([]), is_legal, trials=40)) for _ in range(2))
    assert first == second


def test_a_configuration_without_a_time_is_known_and_not_asked_for_again():
    def measure(configs):
        return {c: None if c.optimized_softmax else made_up_us(c) for c in configs}

    found = search(TUNE[:8], measure, is_legal, trials=30)
    assert None in found.values()
    assert len(found) == 30
