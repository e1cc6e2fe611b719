"""Caches through the doors: lengths, pages, appended rows; what is refused is refused by name."""

import inspect

import numpy as np
import pytest
from nearness import expected_of, require_expected

import flashsmith
from flashsmith import flash_attention, flash_attn_with_kvcache
from flashsmith.api.caches import kv_cache
from flashsmith.base import settings
from flashsmith.base.dtypes import DType
from flashsmith.base.errors import ArgumentError, ArgumentTypeError, Unsupported
from flashsmith.problem.attention import AttentionProblem

torch = pytest.importorskip("torch")

BATCH, ROWS, HEADS, KV_HEADS, D_HEAD, PAGE, PAGES = 3, 2, 4, 2, 64, 16, 6
LENGTHS = np.array([0, 46, 90], np.int32)  # appends end a page, and begin one
CAPACITY = PAGE * PAGES


def drawn(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float16)


Q = drawn(BATCH, ROWS, HEADS, D_HEAD)
NEW = [drawn(BATCH, ROWS, KV_HEADS, D_HEAD, seed=seed) for seed in (1, 2)]
CACHES = [drawn(BATCH, CAPACITY, KV_HEADS, D_HEAD, seed=seed) for seed in (3, 4)]
ORDER = np.random.default_rng(5).permutation(BATCH * PAGES)
TABLE = ORDER.reshape(BATCH, PAGES).astype(np.int32)


def appended():
    """The caches as they must be after the call."""
    found = [cache.copy() for cache in CACHES]
    for cache, new in zip(found, NEW, strict=True):
        for b, length in enumerate(LENGTHS):
            cache[b, length : length + ROWS] = new[b]
    return found


def expected(**facts):
    """What a call on the caches that have the new rows must give."""
    problem = AttentionProblem(
        *(BATCH, HEADS, KV_HEADS, ROWS, CAPACITY, D_HEAD, DType.FP16),
        **{"causal": True, "lse": True, "k_lengths": True, **facts},
    )
    k, v = appended()
    return expected_of(problem, q=Q, k=k, v=v, k_lengths=LENGTHS + np.int32(ROWS))


def expected_of_all(q, k, v):
    """What a causal call must give that sees every key."""
    batch, rows, heads, d_head = q.shape
    shape = (batch, heads, k.shape[2], rows, k.shape[1], d_head)
    return expected_of(AttentionProblem(*shape, DType.FP16, causal=True), q=q, k=k, v=v)


def in_pages(cache):
    return cache.reshape(-1, PAGE, KV_HEADS, D_HEAD)[np.argsort(ORDER)].copy()


def as_library(name):
    return np.array if name == "numpy" else lambda array: torch.from_numpy(np.array(array))


@pytest.fixture(params=["numpy", "torch", "torch emulated"])
def library(request, monkeypatch):
    if request.param != "torch":
        monkeypatch.setenv("FLASHSMITH_DEVICE", "emulator")
    return request.param.partition(" ")[0]


def placed(kind, make):
    """The caches, what a call is told of where their rows lie, and the way back to sequences."""
    if kind == "contiguous":
        return [make(c) for c in CACHES], {}, lambda c: c
    if kind == "pages":
        pools = [make(in_pages(c)) for c in CACHES]
        return pools, {"block_table": make(TABLE)}, lambda c: c[ORDER].reshape(CACHES[0].shape)
    index = np.array([2, 0, 1], np.int32)
    caches = [make(c[np.argsort(index)]) for c in CACHES]
    return caches, {"cache_batch_idx": make(index)}, lambda c: c[index]


def require_appended(kind, make):
    """A call sees the rows that it appends, and leaves them in the caches."""
    held, more, back = placed(kind, make)
    o, lse = flash_attn_with_kvcache(
        *(make(Q), *held, *map(make, NEW)),
        **{"cache_seqlens": make(LENGTHS), "causal": True, "return_softmax_lse": True, **more},
    )
    require_expected(expected(), o=o, lse=lse)
    for cache, after in zip(held, appended(), strict=True):
        np.testing.assert_array_equal(back(np.asarray(cache)), after)


@pytest.mark.parametrize("kind", ["contiguous", "pages", "indices"])
def test_new_rows_are_written_in_place_and_count(library, kind):
    require_appended(kind, as_library(library))


def length_of_before(kind, patch):
    """Of the longest sequence: the kernel sees 90 of its 92 keys."""

    def longer(_, before, rows):
        return before + np.array([rows, rows, 0], np.int32)

    patch.setattr(kv_cache._Operations, "longer", longer)


def rows_of_before(kind, patch):
    """New rows come to the caches when the kernel has read them."""
    before, *_ = placed(kind, np.array)
    attend = kv_cache.attend

    def early(q, k, v, *more, **named):
        return attend(q, *before, *more, **named)

    patch.setattr(kv_cache, "attend", early)


@pytest.mark.parametrize("fault", [length_of_before, rows_of_before])
@pytest.mark.parametrize("kind", ["contiguous", "pages"])
def test_a_kernel_that_reads_a_cache_of_before_the_append_is_noticed(kind, fault, monkeypatch):
    monkeypatch.setenv("FLASHSMITH_DEVICE", "emulator")
    fault(kind, monkeypatch)
    with pytest.raises(AssertionError, match="is too far from the truth"):
        require_appended(kind, np.array)


def test_one_length_for_all_and_none_at_all(library):
    make = as_library(library)
    k, v = (make(c) for c in CACHES)
    one = flash_attn_with_kvcache(make(Q), k, v, cache_seqlens=50, causal=True)
    require_expected(expected_of_all(Q, *(c[:, :50] for c in CACHES)), o=one)
    whole = flash_attn_with_kvcache(make(Q), k, v, causal=True)
    require_expected(expected_of_all(Q, *CACHES), o=whole)


def test_a_chunk_on_a_cache_of_known_length_runs_a_forward_kernel(monkeypatch):
    """Bits tell: kernels for lengths on the device add up in another order."""
    monkeypatch.setenv("FLASHSMITH_DEVICE", "emulator")
    q, *caches = drawn(1, 70, 2, D_HEAD), *(drawn(1, 260, 1, D_HEAD, seed=s) for s in (1, 2))
    new = [cache[:, 130:200].copy() for cache in caches]
    held = [np.where(np.arange(260)[:, None, None] < 130, cache, 0) for cache in caches]
    found = flash_attn_with_kvcache(q, *held, *new, cache_seqlens=130, causal=True)
    cut = [cache[:, :200] for cache in caches]
    np.testing.assert_array_equal(held[0][:, :200], cut[0])
    dense = flash_attention(q, *cut, causal=True, batch_invariant=True)
    np.testing.assert_array_equal(found, dense)
    lengths = np.array([200], np.int32)
    on_device = flash_attn_with_kvcache(q, *caches, cache_seqlens=lengths, causal=True)
    require_expected(expected_of_all(q, *cut), o=on_device)
    assert (on_device != dense).any()
    few = q[:, :32]  # of two heads: as many as a kernel for few rows divides
    one = flash_attn_with_kvcache(few, *caches, cache_seqlens=200, causal=True)
    np.testing.assert_array_equal(
        one, flash_attn_with_kvcache(few, *caches, cache_seqlens=lengths, causal=True)
    )


def test_windows_caps_and_slopes_reach_the_kernel(monkeypatch):
    monkeypatch.setenv("FLASHSMITH_DEVICE", "emulator")
    k, v = appended()
    found = flash_attn_with_kvcache(
        *(Q, k, v),
        cache_seqlens=LENGTHS + ROWS,
        causal=True,
        window_size=(20, 0),
        softcap=4.0,
        softmax_scale=0.2,
    )
    require_expected(expected(window_left=20, softcap=4.0, scale=0.2), o=found)


def test_heads_outside_rows_are_the_other_layout(library):
    make = as_library(library)
    k, v = (make(in_pages(c).transpose(0, 2, 1, 3).copy()) for c in appended())
    o = flash_attention(
        *(make(Q.transpose(0, 2, 1, 3).copy()), k, v),
        layout="bhsd",
        causal=True,
        block_table=make(TABLE),
        k_lengths=make(LENGTHS + ROWS),
    )
    require_expected(expected(), o=np.asarray(o).transpose(0, 2, 1, 3))


def test_the_arguments_are_flash_attns():
    wanted = (
        "q k_cache v_cache k v rotary_cos rotary_sin cache_seqlens cache_batch_idx cache_leftpad "
        "block_table softmax_scale causal window_size softcap rotary_interleaved alibi_slopes "
        "num_splits return_softmax_lse"
    )
    own = ["out", "workspace"]
    assert list(inspect.signature(flash_attn_with_kvcache).parameters) == [*wanted.split(), *own]
    assert "flash_attn_with_kvcache" in flashsmith.__all__


def test_the_decode_kernel_is_chosen_and_explained(monkeypatch):
    monkeypatch.setenv("FLASHSMITH_DEVICE", "emulator")
    k, v = (in_pages(c) for c in CACHES)
    *_, choice = flash_attention(Q, k, v, block_table=TABLE, explain=True)
    assert choice.config.NAME in ("sm80_decode", "sm90_decode")


ONE = {"cache_seqlens": LENGTHS}
BAD = {
    "rotary": ({"rotary_cos": 1}, ArgumentError, "pass k and v, or rotate q before the call"),
    "leftpad": (
        {"cache_leftpad": 1, "block_table": TABLE, **ONE},
        Unsupported,
        "cache_leftpad and block_table are both given; .* or pass a contiguous cache",
    ),
    "leftpad of sequences by index": (
        {"cache_leftpad": LENGTHS, "cache_batch_idx": LENGTHS, **ONE},
        Unsupported,
        r"cache_leftpad and cache_batch_idx are .* or pass k_cache\[cache_batch_idx\]",
    ),
    "both": (
        {"cache_batch_idx": LENGTHS, "block_table": TABLE},
        ArgumentError,
        "drop cache_batch_idx",
    ),
    "no lengths": (
        {"k": NEW[0], "v": NEW[1]},
        ArgumentError,
        "cache_seqlens is not; pass how",
    ),
    "no v": ({"k": NEW[0], **ONE}, ArgumentError, "v has shape None; new rows of k and v must"),
    "wide": (
        {"k": NEW[0][..., :8], "v": NEW[1][..., :8], **ONE},
        ArgumentError,
        r"k has shape \(3, 2, 2, 8\)",
    ),
    "lengths": ({"cache_seqlens": LENGTHS[:2]}, ArgumentError, r"shape \(2,\); it must be \(3,\)"),
    "other": ({"cache_seqlens": [1, 2, 3]}, ArgumentTypeError, "pass both of one library"),
    "table": ({"block_table": TABLE[:2]}, ArgumentError, r"block_table has shape \(2, 6\)"),
    "float table": ({"block_table": TABLE * 1.0}, ArgumentTypeError, "block_table is float64"),
    "flag": ({"causal": 2}, ArgumentTypeError, "causal is 2"),
}


@pytest.mark.parametrize(("given", "error", "says"), BAD.values(), ids=BAD)
def test_what_cannot_be_is_refused_by_name(given, error, says, monkeypatch):
    monkeypatch.setenv("FLASHSMITH_DEVICE", "emulator")
    with pytest.raises(error, match=says):
        flash_attn_with_kvcache(Q, *(c.copy() for c in CACHES), **given)


def test_caches_of_other_shapes_are_refused():
    with pytest.raises(ArgumentError, match=r"k_cache has shape .* they must be equal"):
        flash_attn_with_kvcache(Q, CACHES[0], CACHES[1][:, :5])
    with pytest.raises(ArgumentError, match=r"q has shape .*four dimensions"):
        flash_attn_with_kvcache(Q[0], *CACHES)


def test_pages_of_k_and_v_must_be_as_many():
    k, v = (in_pages(c) for c in CACHES)
    with pytest.raises(ArgumentError, match="k has 18 pages and v has 17; they must be equal"):
        flash_attention(Q, k, v[:-1], block_table=TABLE)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"length": (1, 97)}, r"k_lengths\[1\] is 97; sequence 1 has room for 0 to 96 keys"),
        ({"length": (2, -1)}, r"k_lengths\[2\] is -1"),
        ({"entry": (2, 5, 18)}, r"block_table\[2, 5\] is 18; the pool has pages 0 to 17"),
        ({"entry": (1, 5, 18)}, ""),  # behind what the sequence has
    ],
)
def test_checked_calls_name_a_bad_length_or_entry(change, says, monkeypatch):
    monkeypatch.setitem(settings._answers, settings.CHECK, True)  # a process reads it once
    monkeypatch.setenv("FLASHSMITH_DEVICE", "emulator")
    lengths, table = LENGTHS.copy(), TABLE.copy()
    if "length" in change:
        lengths[change["length"][0]] = change["length"][1]
    else:
        table[change["entry"][:2]] = change["entry"][2]
    k, v = (in_pages(c) for c in CACHES)
    if not says:
        flash_attention(Q, k, v, k_lengths=lengths, block_table=table)
        return
    with pytest.raises(ArgumentError, match=says):
        flash_attention(Q, k, v, k_lengths=lengths, block_table=table)


def test_appends_beyond_the_cache_stay_inside_it(monkeypatch):
    monkeypatch.setenv("FLASHSMITH_DEVICE", "emulator")
    pool = np.full((PAGES * 2, PAGE, KV_HEADS, D_HEAD), 7, np.float16)
    k, v = pool[:PAGES], pool[PAGES:]
    table = np.full((BATCH, 2), PAGES + 3, np.int32)  # no such page
    flash_attn_with_kvcache(
        *(Q, k, v, *NEW), cache_seqlens=np.full(BATCH, 31, np.int32), block_table=table
    )
    assert (k[:-1] == 7).all()
    assert (v[:-1] == 7).all()
    assert (k[-1] != 7).any()


def test_compiled_and_meta_calls_know_the_shapes():
    make = as_library("torch")
    k, v = (make(in_pages(c)) for c in CACHES)
    tables = {"k_lengths": make(LENGTHS), "block_table": make(TABLE)}

    def call(q):
        return flash_attention(q, k, v, causal=True, **tables)

    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(make(Q)), call(make(Q)))
    meta = {name: table.to("meta") for name, table in tables.items()}
    on_meta = flash_attention(make(Q).to("meta"), k.to("meta"), v.to("meta"), **meta)
    assert on_meta.shape == Q.shape


def step(given):
    """O and LSE of one call of a server."""
    return flash_attn_with_kvcache(**given, causal=True, return_softmax_lse=True)


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, 3], ids=["by lanes", "by boxes"])
@pytest.mark.parametrize("names", ["q", "qkv"], ids=["by a look-up", "with an append"])
def test_a_captured_call_on_pages_replays_with_other_lengths_and_pages(names, rows):
    width, pool = 140, 450  # 2,240 keys: more than two slices of 512, and of 1,024
    shapes = {name: (3, rows, 3 if name == "q" else 1, D_HEAD) for name in names}
    shapes |= dict.fromkeys(("k_cache", "v_cache"), (pool, PAGE, 1, D_HEAD))
    arrays = {n: drawn(*shape, seed=seed) for seed, (n, shape) in enumerate(shapes.items())}
    tables = {"cache_seqlens": np.zeros(3, np.int32), "block_table": np.zeros((3, width), np.int32)}
    given = {n: torch.from_numpy(x).to("cuda") for n, x in (arrays | tables).items()}
    step({name: tensor.clone() for name, tensor in given.items()})
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step(given)
    found, random = set(), np.random.default_rng(6)
    for lengths in ((2237, 7, 1030), (0, 2100, 513), (300, 301, 1)):
        pages = random.permutation(pool)[: 3 * width].reshape(3, width)
        given["cache_seqlens"].copy_(torch.tensor(lengths))
        given["block_table"].copy_(torch.from_numpy(pages))
        alone = {name: tensor.clone() for name, tensor in given.items()}
        fresh = step(alone)
        graph.replay()
        torch.cuda.synchronize()
        for ours, theirs in zip(captured, fresh, strict=True):
            assert torch.equal(ours, theirs)
        for cache in ("k_cache", "v_cache"):
            assert torch.equal(given[cache], alone[cache])
        found.add(captured[0].cpu().numpy().tobytes())
    assert len(found) == 3
