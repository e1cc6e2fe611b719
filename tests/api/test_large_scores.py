"""Scores of every size: right up to the stated limit, and refused beyond it where one asks."""

import math

import numpy as np
import pytest

from flashsmith import flash_attention, flash_attention_backward
from flashsmith.api.scores import MOST
from flashsmith.base import settings
from flashsmith.base.dtypes import DType, from_bits, to_bits
from flashsmith.base.errors import ArgumentError
from flashsmith.check.tolerance import FACTOR, UNIT_ROUNDOFF
from flashsmith.kernels import get_kernel_configs

CONFIGS = [c for key in ("prog", "hopper-prog") for c in get_kernel_configs(key)[-1:]]


def one_hot(config, largest):
    """Q, K and V, the scale by which scores reach `largest`, and what rows must be, by number.

    Of a row whose two largest scores lie near each other, float32 cannot tell how near.
    """
    rng = np.random.default_rng(23)
    q, k, v = (rng.normal(size=(1, 130, 1, config.d_head)) for _ in range(3))
    q, k, v = (
        from_bits(to_bits(x.astype(np.float32), config.dtype), config.dtype) for x in (q, k, v)
    )
    scores = np.einsum("bqhd,bkhd->bhqk", q.astype(np.float64), k.astype(np.float64))
    scale = largest / np.abs(scores).max()
    second, first = np.sort(scores[0, 0] * scale)[:, -2:].T
    rows = np.flatnonzero(first - second > 20 + 1e-6 * largest)
    assert rows.size > 100
    return q, k, v, float(scale), {n: v[0, scores[0, 0, n].argmax(), 0] for n in rows}


@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: c.short_form())
@pytest.mark.parametrize("largest", [1e6, 0.99 * MOST])
def test_scores_up_to_the_limit_are_right(config, largest):
    q, k, v, scale, expected = one_hot(config, largest)
    arrays = [x.astype(np.float16) for x in (q, k, v)]
    config = config.replace(dtype=DType.FP16)
    found = flash_attention(*arrays, scale=scale, config=config, backend="emulator")
    rows = found[0, list(expected), 0].astype(np.float32)
    # The weight of the one key and the output are rounded; the weights of others add nothing.
    off, wanted = np.abs(rows - list(expected.values())), np.abs(list(expected.values()))
    assert (off.max(1) <= FACTOR * UNIT_ROUNDOFF[DType.FP16] * wanted.max(1)).all()


@pytest.fixture
def check(monkeypatch):
    """Sets FLASHSMITH_CHECK, which a process reads once."""

    def set_to(value):
        monkeypatch.setenv("FLASHSMITH_CHECK", value)
        settings._answers.clear()

    yield set_to
    settings._answers.clear()


def arrays(size=1.0):
    rng = np.random.default_rng(1)
    return [(size * rng.normal(size=(1, 9, 1, 64))).astype(np.float16) for _ in range(3)]


def test_a_call_that_is_checked_refuses_scores_beyond_the_limit(check):
    check("1")
    with pytest.raises(ArgumentError, match=r"scores may reach .*e\+09 .* right up to 1e\+08"):
        flash_attention(*arrays(), scale=1e8, backend="emulator")
    out = flash_attention(*arrays(), scale=1e5, backend="emulator")
    assert np.isfinite(out.astype(np.float32)).all()


def test_what_is_added_to_scores_counts_and_what_hides_a_key_does_not(check):
    check("1")
    bias = np.zeros((9, 9), np.float32)
    bias[:, ::2] = -1e12
    out = flash_attention(*arrays(), bias=bias, backend="emulator")
    assert np.isfinite(out.astype(np.float32)).all()
    for row, says in ((-1e12, "1e[+]12"), (3e8, "3e[+]08")):
        bias[4] = row  # all keys of a row: none of them is its far larger maximum
        with pytest.raises(ArgumentError, match=f"bias puts a row of scores at {says}; .* 1e[+]08"):
            flash_attention(*arrays(), bias=bias, backend="emulator")
    bias[4] = np.finfo(np.float32).min
    hidden = flash_attention(*arrays(), bias=bias, backend="emulator")
    assert (hidden[0, 4] == 0).all()
    with pytest.raises(ArgumentError, match=r"alibi_slopes puts a row of scores at 1e[+]09"):
        flash_attention(*arrays(), alibi_slopes=np.array([1e9], np.float32), backend="emulator")


def test_a_backward_call_is_held_to_the_limit_too(check):
    check("1")
    q, k, v = arrays()
    with pytest.raises(ArgumentError, match="scores may reach"):
        flash_attention_backward(
            *(q, q, k, v, q, np.zeros((1, 1, 9), np.float32)), scale=1e8, backend="emulator"
        )


def test_torch_tensors_are_looked_into_too(check):
    torch = pytest.importorskip("torch")
    check("1")
    tensors = [torch.from_numpy(x) for x in arrays(1000.0)]
    with pytest.raises(ArgumentError, match="scores may reach"):
        flash_attention(*tensors, scale=1e3)


def test_a_call_that_is_not_checked_looks_at_nothing(check):
    check("0")
    flash_attention(*arrays(), scale=1e8, backend="emulator")  # whatever comes out
    check("yes")
    with pytest.raises(ArgumentError, match="FLASHSMITH_CHECK is 'yes'; it must be 0 or 1"):
        flash_attention(*arrays(), backend="emulator")


def test_the_limit_follows_from_what_a_rounded_maximum_may_add():
    half_ulp = np.spacing(np.float32(MOST * math.log2(math.e))) / 2
    assert 2.0**half_ulp < float(np.finfo(np.float16).max)
