"""Lengths, tables and caches that lie: clamped as is documented, or refused before any writing."""

import numpy as np
import pytest

from flashsmith import flash_attention, flash_attn_with_kvcache
from flashsmith.base import settings
from flashsmith.base.errors import ArgumentError, ArgumentTypeError, FlashsmithError

torch = pytest.importorskip("torch")
from test_bad_calls import BAD_CALLS  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::flashsmith.FlashsmithWarning")
BATCH, HEADS, KEYS, D_HEAD, NEW = 2, 3, 300, 64, 7
LIBRARIES = {"numpy": np.array, "torch": lambda x: torch.from_numpy(np.array(x))}


def drawn(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float16)


Q, K, V = (drawn(BATCH, *s, D_HEAD, seed=i) for i, s in enumerate([(1, HEADS), *[(KEYS, 1)] * 2]))
ROWS = [drawn(BATCH, NEW, 1, D_HEAD, seed=seed) for seed in (3, 4)]
TABLE = np.array([[0], [1]], np.int32)


@pytest.fixture
def check(monkeypatch):
    monkeypatch.setenv("FLASHSMITH_CHECK", "1")
    settings._answers.clear()
    yield
    settings._answers.clear()


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize(
    "lengths", [[2**32 + 5, 9], [2**31 + 7, -1], [-5, 2**40]], ids=["wraps", "signed", "negative"]
)
def test_lengths_of_64_bits_are_clamped_and_not_cut(library, lengths):
    make = LIBRARIES[library]
    inside = np.clip(lengths, 0, KEYS).astype(np.int32)
    q, k, v, given, wanted = map(make, (Q, K, V, np.array(lengths, np.int64), inside))
    found = flash_attention(q, k, v, k_lengths=given)
    np.testing.assert_array_equal(found, flash_attention(q, k, v, k_lengths=wanted))
    huge = flash_attn_with_kvcache(q, k, v, cache_seqlens=10**20)
    np.testing.assert_array_equal(huge, flash_attn_with_kvcache(q, k, v, cache_seqlens=KEYS))


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize(
    ("lengths", "kind", "begins"),
    [([250, 5], np.uint8, [250, 5]), ([2**31 - 1, 0], np.int32, [KEYS - 1, 0])],
    ids=["narrow", "largest"],
)
def test_appended_rows_lie_and_count_behind_any_length(library, lengths, kind, begins):
    make = LIBRARIES[library]
    q, k, v, new_k, new_v, given = map(make, (Q, K, V, *ROWS, np.array(lengths, kind)))
    found = flash_attn_with_kvcache(q, k, v, k=new_k, v=new_v, cache_seqlens=given)
    after = K.copy()
    for b, begin in enumerate(begins):
        after[b, np.minimum(begin + np.arange(NEW), KEYS - 1)] = ROWS[0][b]
    np.testing.assert_array_equal(np.asarray(k), after)
    behind = make(np.minimum(np.array(begins) + NEW, KEYS).astype(np.int32))
    np.testing.assert_array_equal(found, flash_attn_with_kvcache(q, k, v, cache_seqlens=behind))


# name: (arguments of `flash_attn_with_kvcache`, the words of the refusal)
REFUSED_APPENDS = {
    "another type": ({"k": ROWS[0].astype(np.float32)}, r"k has type .*float32 and k_cache"),
    "one memory": ({"v_cache": "k_cache"}, "k_cache and v_cache are the same memory"),
    "another batch": ({"k_cache": K[:1], "v_cache": V[:1]}, "q has batch 2 and the caches have 1"),
    "no rows": ({"k_cache": K[:, :0], "v_cache": V[:, :0]}, "have no room; pass larger ones"),
    "no pages": (
        {"k_cache": K[:0], "v_cache": V[:0], "block_table": TABLE},
        "have no room; pass larger ones",
    ),
    "no entries": ({"block_table": TABLE[:, :0]}, "have no room; pass larger ones"),
    "a flat table": ({"block_table": TABLE[:, 0]}, r"block_table has shape \(2,\); it must be"),
    "a table of another batch": ({"block_table": TABLE[:1]}, r"block_table has shape \(1, 1\)"),
    "a table of numbers": ({"block_table": TABLE.astype(np.float32)}, "block_table is float32"),
    "bools": ({"cache_seqlens": np.array([True, False])}, "cache_seqlens is bool; it must be"),
    "indices of numbers": ({"cache_batch_idx": TABLE[:, 0] / 1.0}, "cache_batch_idx is float64"),
}


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("name", REFUSED_APPENDS)
def test_an_append_is_refused_before_anything_is_written(library, name):
    changes, words = REFUSED_APPENDS[name]
    make = LIBRARIES[library]
    given = {
        "k_cache": K,
        "v_cache": V,
        "k": ROWS[0],
        "v": ROWS[1],
        "cache_seqlens": np.array([5, 9]),
    }
    given = {n: x if isinstance(x, str) else make(x) for n, x in {**given, **changes}.items()}
    given = {n: given[x] if isinstance(x, str) else x for n, x in given.items()}
    before = np.asarray(given["k_cache"]).copy()
    with pytest.raises((ArgumentError, ArgumentTypeError), match=words):
        flash_attn_with_kvcache(make(Q), **given)
    np.testing.assert_array_equal(np.asarray(given["k_cache"]), before)


def test_an_expanded_cache_is_not_written_into():
    shared = np.broadcast_to(K[:1], K.shape)
    spread = [torch.from_numpy(x[:1].copy()).expand(BATCH, -1, -1, -1) for x in (K, V)]
    new = dict(zip("kv", ROWS, strict=True))
    of_torch = {name: torch.from_numpy(rows) for name, rows in new.items()}
    with pytest.raises(ArgumentError, match="k_cache is expanded or read-only"):
        flash_attn_with_kvcache(Q, shared, V.copy(), **new, cache_seqlens=5)
    with pytest.raises(ArgumentError, match="k_cache is expanded or read-only"):
        flash_attn_with_kvcache(torch.from_numpy(Q), *spread, **of_torch, cache_seqlens=5)


@pytest.mark.parametrize("lengths", [[KEYS - NEW + 1, 5], [-1, 5]])
def test_a_checked_append_that_does_not_fit_writes_nothing(check, lengths):
    k, v = K.copy(), V.copy()
    given = {"k": ROWS[0], "v": ROWS[1], "cache_seqlens": np.array(lengths, np.int32)}
    with pytest.raises(ArgumentError, match=r"k_lengths\[0\] is .* has room for 0 to 300 keys"):
        flash_attn_with_kvcache(Q, k, v, **given)
    np.testing.assert_array_equal(k, K)


@pytest.mark.parametrize("name", BAD_CALLS)
def test_a_checked_call_is_refused_with_the_same_sentence(check, name):
    bad, kind, message = BAD_CALLS[name]
    with pytest.raises(kind) as caught:
        bad()
    assert str(caught.value) == message


PACKED = {"cu_seqlens_q": np.array([0, 9, 40], np.int32), "cu_seqlens_k": [0, 7, 60]}
BAD_TABLES = {
    "one length": {"k_lengths": 5},
    "lengths in two dimensions": {"k_lengths": TABLE},
    "a text": {"k_lengths": "ab"},
    "a flat table": {"k_lengths": TABLE[:, 0], "block_table": TABLE[:, 0]},
    "a table of more": {"k_lengths": TABLE[:1, 0], "block_table": TABLE},
    "one boundary": {**PACKED, "cu_seqlens_q": 5},
    "boundaries in two dimensions": {**PACKED, "cu_seqlens_k": np.array([[0, 7, 60]])},
    "boundaries of text": {**PACKED, "cu_seqlens_k": "abc"},
    "boundaries and lengths of others": {**PACKED, "k_lengths": np.array([3, 4, 5], np.int32)},
}


@pytest.mark.parametrize("name", BAD_TABLES)
def test_a_checked_call_says_what_is_wrong_with_a_table(check, name):
    tables = BAD_TABLES[name]
    if "cu_seqlens_k" in tables:
        arrays = (drawn(40, 3, 64), drawn(60, 3, 64), drawn(60, 3, 64))
    else:
        arrays = (Q, K, V)
    with pytest.raises(FlashsmithError, match=r"has shape|it must be"):
        flash_attention(*arrays, **tables)


@pytest.mark.parametrize("dtype", [torch.bool, torch.complex64])
def test_tables_of_torch_are_integers(dtype):
    q, k, v = map(torch.from_numpy, (Q, K, V))
    with pytest.raises(ArgumentTypeError, match=r"k_lengths is torch.* it must be torch.int32"):
        flash_attention(q, k, v, k_lengths=torch.ones(2, dtype=dtype))
