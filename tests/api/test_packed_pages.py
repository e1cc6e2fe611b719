"""Packed query rows on pages of keys: right, the same bits in any company, and refused by name."""

import numpy as np
import pytest
from nearness import expected_of, require_expected

from flashsmith import flash_attention, flash_attn_varlen_func, flash_attn_with_kvcache
from flashsmith.base import settings
from flashsmith.base.dtypes import DType
from flashsmith.base.errors import ArgumentError
from flashsmith.problem.attention import AttentionProblem

HEADS, KV_HEADS, D_HEAD = 6, 2, 64
EMPTY_CACHE = (0, 5)  # keys, rows
# Keys and rows of each sequence: decode, a prompt, nothing to ask, no key, a draft, a whole prompt.
SEQUENCES = ((40, 1), (90, 33), (17, 0), EMPTY_CACHE, (130, 4), (29, 29))


def draw(rng, *shape):
    return rng.standard_normal(shape, np.float32).astype(np.float16)


def pooled(rng, caches, *, page):
    """Pools of pages in any order that hold these keys and values, and the table of pages."""
    widest = max(-(-len(k) // page) for k, _ in caches) + int(rng.integers(1, 3))
    pool = len(caches) * widest + 2
    table = rng.permutation(pool)[: len(caches) * widest].reshape(-1, widest).astype(np.int32)
    pools = [draw(rng, pool, page, KV_HEADS, D_HEAD) for _ in "kv"]
    for places, cache in zip(table, caches, strict=True):
        for target, rows in zip(pools, cache, strict=True):
            for first in range(0, len(rows), page):
                part = rows[first : first + page]
                target[places[first // page], : len(part)] = part
    return pools, table


def packed(rng, requests, *, page, before=0, behind=0):
    """The arguments of a call of requests (q, k, v), with rows that belong to none around them."""
    outer = [draw(rng, n, HEADS, D_HEAD) for n in (before, behind)]
    q = np.concatenate([outer[0], *(one[0] for one in requests), outer[1]])
    ends = np.cumsum([before, *(len(one[0]) for one in requests)]).astype(np.int32)
    pools, table = pooled(rng, [one[1:] for one in requests], page=page)
    lengths = np.array([len(one[1]) for one in requests], np.int32)
    return (q, *pools), ends, lengths, table


def drawn(rng, keys, rows):
    return draw(rng, rows, HEADS, D_HEAD), *(draw(rng, keys, KV_HEADS, D_HEAD) for _ in "kv")


def alone(request, tables=None, **facts):
    """What one request must give."""
    q, k, v = (x[None] for x in request)
    shape = (1, HEADS, KV_HEADS, q.shape[1], k.shape[1], D_HEAD)
    problem = AttentionProblem(*shape, DType.FP16, causal=True, **facts)
    return expected_of(problem, q=q, k=k, v=v, **(tables or {}))


@pytest.fixture(scope="module")
def requests():
    rng = np.random.default_rng(7)
    return [drawn(rng, keys, rows) for keys, rows in SEQUENCES]


@pytest.fixture(autouse=True)
def emulator(monkeypatch):
    monkeypatch.setenv("FLASHSMITH_DEVICE", "emulator")


@pytest.mark.parametrize("kind", ["lengths", "boundaries", "torch", "torch on the CPU"])
def test_every_sequence_is_its_own_problem(requests, kind, monkeypatch):
    arrays, ends, lengths, table = packed(
        np.random.default_rng(1), requests, page=16, before=2, behind=3
    )
    ends_k = np.cumsum([0, *lengths]).astype(np.int32)
    make = np.asarray
    if kind.startswith("torch"):
        make = pytest.importorskip("torch").from_numpy
    if kind == "torch on the CPU":
        monkeypatch.delenv("FLASHSMITH_DEVICE")
    out = make(np.ones_like(arrays[0]))
    given = {"seqused_k": make(lengths)} if kind == "lengths" else {"cu_seqlens_k": make(ends_k)}
    o, lse, _ = flash_attn_varlen_func(
        *map(make, arrays),
        cu_seqlens_q=make(ends),
        max_seqlen_q=1,  # whatever a caller says is longest
        causal=True,
        return_attn_probs=True,
        block_table=make(table),
        out=out,
        **given,
    )
    o, lse, out = np.asarray(o), np.asarray(lse), np.asarray(out)
    assert out.tobytes() == o.tobytes()
    assert lse.shape == (HEADS, len(arrays[0]))
    for request, first, end in zip(requests, ends, ends[1:], strict=False):
        require_expected(alone(request), o=o[None, first:end])
    none = [*range(2), *range(ends[3], ends[4]), *range(ends[-1], len(o))]
    assert not o[none].any()
    assert np.isneginf(lse[:, none]).all()
    assert np.isfinite(np.delete(lse, none, 1)).all()


def companies(request, *, count, seed, most=3, longest=100):
    """Random calls around a request: beside decode steps and prompts, on pages of many sizes."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        others = int(rng.integers(0, most + 1))
        rows = [int(rng.choice([0, 1, 1, 1, 9, rng.integers(1, longest)])) for _ in range(others)]
        requests = [drawn(rng, int(rng.integers(n, 3 * longest)), n) for n in rows]
        place = int(rng.integers(others + 1))
        requests.insert(place, request)
        page = int(rng.choice([1, 7, 16, 64]))
        behind = int(rng.integers(3))
        arrays, ends, lengths, table = packed(rng, requests, page=page, behind=behind)
        yield arrays, ends, lengths, table, slice(ends[place], ends[place + 1])


# Of one token and three slices; of two tiles of many rows; of one tile of them in three slices.
REQUESTS = {"decode": (1100, 1, 8), "prompt": (60, 40, 10), "draft": (2100, 11, 2)}


def bits_in(companies, request, make=np.asarray):
    """O and LSE of the request, as many different ones as there are."""
    found, expected = set(), alone(request)
    for arrays, ends, lengths, table, own in companies:
        o, lse, _ = flash_attn_varlen_func(
            *(*map(make, arrays), make(ends), None, 0, 0),
            causal=True,
            return_attn_probs=True,
            block_table=make(table),
            seqused_k=make(lengths),
        )
        o, lse = (np.asarray(x.cpu() if hasattr(x, "cpu") else x) for x in (o, lse))
        found.add((o[own].tobytes(), lse[:, own].tobytes()))
        require_expected(expected, o=o[None, own])
    return found


@pytest.mark.parametrize("kind", REQUESTS)
def test_no_company_reaches_the_bits_of_a_packed_request(kind):
    keys, rows, count = REQUESTS[kind]
    request = drawn(np.random.default_rng(len(kind)), keys, rows)
    found = bits_in(companies(request, count=count, seed=keys), request)
    assert len(found) == 1
    if rows * HEADS // KV_HEADS > 64:
        return  # by itself a chunk, which the forward kernel reads
    table = np.arange(-(-keys // 10), dtype=np.int32)[None]
    pools = [np.resize(x, (table.size, 10, *x.shape[1:])) for x in request[1:]]
    o, lse = flash_attn_with_kvcache(
        request[0][None],
        *pools,
        cache_seqlens=np.array([keys], np.int32),
        block_table=table,
        causal=True,
        return_softmax_lse=True,
    )
    assert found == {(o[0].tobytes(), lse[0].tobytes())}


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("keys", "rows"), [(1, 1), (1100, 1), (5000, 1), (3000, 5), (2100, 11), (900, 300)]
)
def test_200_companies_do_not_reach_the_bits_of_a_packed_request(keys, rows, monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.delenv("FLASHSMITH_DEVICE")
    request = drawn(np.random.default_rng(rows), keys, rows)
    every = companies(request, count=200, seed=keys, most=9, longest=500)
    assert len(bits_in(every, request, lambda array: torch.from_numpy(array).cuda())) == 1


def test_masks_and_scores_are_those_of_the_own_sequence(requests):
    arrays, ends, lengths, table = packed(np.random.default_rng(3), requests, page=7)
    tables = {"cu_seqlens_q": ends, "k_lengths": lengths, "block_table": table}
    facts = {"window_left": 20, "softcap": 3.0, "scale": 0.2}
    found = flash_attention(*arrays, causal=True, **tables, **facts)
    for request, first, end in zip(requests, ends, ends[1:], strict=False):
        require_expected(alone(request, **facts), o=found[None, first:end])


def test_torch_compile_traces_it_without_a_break(requests, monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.delenv("FLASHSMITH_DEVICE")
    arrays, ends, lengths, table = packed(np.random.default_rng(5), requests[:2], page=16)
    given = [torch.from_numpy(x) for x in (*arrays, ends, lengths, table)]

    def model(q, k, v, ends, lengths, table):
        more = {"block_table": table, "seqused_k": lengths}
        return flash_attn_varlen_func(q, k, v, ends, None, 9, 9, causal=True, **more) * 2

    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(*given), model(*given))


def test_what_is_missing_or_too_much_is_named(requests):
    arrays, ends, lengths, table = packed(np.random.default_rng(5), requests, page=16)
    all_of_it = {"cu_seqlens_q": ends, "k_lengths": lengths, "block_table": table}
    wrong = [
        ({"k_lengths": None}, "k_lengths is missing; packed rows on pages"),
        ({"cu_seqlens_k": ends}, "cu_seqlens_k and block_table are both given"),
        ({"block_table": table[1:]}, r"block_table has shape \(5, \d+\); it must be \(6, pages"),
        ({"k_lengths": lengths[1:]}, r"k_lengths has shape \(5,\); it must be \(6,\)"),
    ]
    for change, says in wrong:
        with pytest.raises(ArgumentError, match=says):
            flash_attention(*arrays, **(all_of_it | change))


def test_a_checked_call_names_the_entry_and_the_boundary_that_is_wrong(requests, monkeypatch):
    arrays, ends, lengths, table = packed(np.random.default_rng(5), requests, page=16)
    pool = len(arrays[1])
    far, fallen = table.copy(), ends.copy()
    far[4, 0], fallen[2] = pool, 0
    cases = [
        (ends, far, rf"block_table\[4, 0\] is {pool}; the pool has pages 0 to {pool - 1}"),
        (fallen, table, r"cu_seqlens_q\[2\] is 0 and cu_seqlens_q\[1\] is 1"),
    ]
    for boundaries, pages, says in cases:
        given = {"cu_seqlens_q": boundaries, "k_lengths": lengths, "block_table": pages}
        flash_attention(*arrays, causal=True, return_lse=True, **given)  # clamped
        with monkeypatch.context() as checked:
            checked.setitem(settings._answers, settings.CHECK, True)
            with pytest.raises(ArgumentError, match=says):
                flash_attention(*arrays, causal=True, return_lse=True, **given)


def test_slopes_are_those_of_each_sequence(requests):
    arrays, ends, lengths, table = packed(np.random.default_rng(2), requests, page=16, behind=3)
    slopes = np.random.default_rng(3).uniform(0, 0.5, (len(requests), HEADS)).astype(np.float32)
    o = flash_attn_varlen_func(
        *arrays,
        cu_seqlens_q=ends,
        seqused_k=lengths,
        causal=True,
        block_table=table,
        alibi_slopes=slopes,
    )
    for request, own, first, end in zip(requests, slopes, ends, ends[1:], strict=False):
        wanted = alone(request, {"alibi_slopes": own[None]}, alibi=True)
        require_expected(wanted, o=o[None, first:end])
