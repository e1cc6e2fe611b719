"""Rotary tables of `flash_attn_with_kvcache`: against complex numbers, in float64."""

import numpy as np
import pytest
from nearness import expected_of, require_expected

from flashsmith import flash_attn_with_kvcache
from flashsmith.base.dtypes import DType
from flashsmith.base.errors import ArgumentError, ArgumentTypeError
from flashsmith.problem.attention import AttentionProblem

torch = pytest.importorskip("torch")

BATCH, ROWS, HEADS, KV_HEADS, D_HEAD, WIDTH, PAGE = 3, 5, 6, 2, 64, 32, 16
LENGTHS = np.array([0, 43, 91], np.int32)  # appended rows cross pages
CAPACITY = 96


def drawn(*shape, seed):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float16)


Q = drawn(BATCH, ROWS, HEADS, D_HEAD, seed=0)
NEW = [drawn(BATCH, ROWS, KV_HEADS, D_HEAD, seed=seed) for seed in (1, 2)]
CACHES = [drawn(BATCH, CAPACITY, KV_HEADS, D_HEAD, seed=seed) for seed in (3, 4)]
TURNS = np.random.default_rng(5).uniform(0, 6.3, (CAPACITY, WIDTH // 2))
COS, SIN = (f(TURNS).astype(np.float16) for f in (np.cos, np.sin))


def turned(x, at, interleaved):
    """Rows multiplied by the tables' complex numbers."""
    by = (COS.astype(float) + 1j * SIN.astype(float))[at][:, :, None]
    wide, found = x.astype(float), x.astype(float)
    first, second = slice(0, WIDTH // 2), slice(WIDTH // 2, WIDTH)
    if interleaved:
        first, second = slice(0, WIDTH, 2), slice(1, WIDTH, 2)
    z = (wide[..., first] + 1j * wide[..., second]) * by
    found[..., first], found[..., second] = z.real, z.imag
    return found.astype(x.dtype)


MASKS = {
    "causal": ({"causal": True}, {"causal": True}, np.arange(ROWS)),
    "window": (
        {"window_size": (20, 3)},
        {"window_left": 20, "window_right": 3},
        np.arange(ROWS),
    ),
    "neither": ({}, {}, np.zeros(ROWS, int)),
}


@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("kind", ["numpy", "torch", "torch, pages"])
def test_rows_are_rotated_by_where_they_stand(kind, mask, interleaved, monkeypatch):
    if kind == "numpy":
        monkeypatch.setenv("FLASHSMITH_DEVICE", "emulator")
    make = np.array if kind == "numpy" else lambda x: torch.from_numpy(np.array(x))
    options, facts, behind = MASKS[mask]
    more = {"cache_seqlens": make(LENGTHS), **options}
    shape = CACHES[0].shape
    if kind == "torch, pages":
        table = np.arange(BATCH * CAPACITY // PAGE, dtype=np.int32).reshape(BATCH, -1)
        more["block_table"], shape = torch.from_numpy(table), (-1, PAGE, KV_HEADS, D_HEAD)
    held = [make(c.reshape(shape)) for c in CACHES]
    found = flash_attn_with_kvcache(
        *(make(Q), *held, *map(make, NEW), make(COS), make(SIN)),
        **{**more, "rotary_interleaved": interleaved},
    )
    new = LENGTHS[:, None] + np.arange(ROWS)
    q = turned(Q, LENGTHS[:, None] + behind, interleaved)
    k = turned(NEW[0], new, interleaved)
    after = [c.copy() for c in CACHES]
    for cache, rows in zip(after, (k, NEW[1]), strict=True):
        cache[np.arange(BATCH)[:, None], new] = rows
    problem = AttentionProblem(
        *(BATCH, HEADS, KV_HEADS, ROWS, CAPACITY, D_HEAD, DType.FP16), k_lengths=True, **facts
    )
    lengths = LENGTHS + np.int32(ROWS)
    wanted = expected_of(problem, q=q, k=after[0], v=after[1], k_lengths=lengths)
    require_expected(wanted, o=found)
    for cache, expected in zip(held, after, strict=True):  # rounded once: at most a digit apart
        off = np.abs(np.asarray(cache).reshape(expected.shape) - expected)
        assert (off <= np.spacing(np.abs(expected))).all()


BAD = {
    "one table": ({"rotary_cos": COS}, ArgumentError, "rotary_sin is not; pass both"),
    "no rows": ({"k": None, "v": None, "rotary_cos": COS}, ArgumentError, "k and v are not; rows"),
    "short": (
        {"rotary_cos": COS[:9], "rotary_sin": SIN[:9]},
        ArgumentError,
        r"shape \(9, 16\).*at least 96 positions",
    ),
    "narrow": (
        {"rotary_cos": COS[:, :4], "rotary_sin": SIN[:, :4]},
        ArgumentError,
        "a multiple of 16 columns",
    ),
    "unequal": (
        {"rotary_cos": COS, "rotary_sin": SIN[:, :8]},
        ArgumentError,
        "they must be equal",
    ),
    "type": (
        {"rotary_cos": COS.astype(np.float32), "rotary_sin": SIN},
        ArgumentTypeError,
        "rotary_cos is float32 and q float16",
    ),
    "library": (
        {"rotary_cos": torch.from_numpy(COS), "rotary_sin": SIN},
        ArgumentTypeError,
        "of one library",
    ),
    "a number": ({"rotary_cos": 1, "rotary_sin": SIN}, ArgumentTypeError, "rotary_cos of type int"),
}


@pytest.mark.parametrize(("given", "error", "says"), BAD.values(), ids=BAD)
def test_tables_that_do_not_fit_are_refused_before_anything_is_written(given, error, says):
    held = [c.copy() for c in CACHES]
    both = {"k": NEW[0], "v": NEW[1], "cache_seqlens": LENGTHS, **given}
    with pytest.raises(error, match=says):
        flash_attn_with_kvcache(Q, *held, **both)
    for cache, before in zip(held, CACHES, strict=True):
        np.testing.assert_array_equal(cache, before)
