"""A request's bits in many random batches: other sequences, pages, tables and numbers of rows."""

import numpy as np
import pytest

from flashsmith import flash_attn_with_kvcache
from flashsmith.base.dtypes import DType
from flashsmith.problem.attention import AttentionProblem
from flashsmith.runtime.devices import default_device
from flashsmith.tuner.choose.choice import choose

HEADS, KV_HEADS, D_HEAD = 6, 2, 64
LENGTHS = (1, 700, 1100)  # of the request: of one kv block, one slice, three slices


def draw(rng, *shape):
    return rng.standard_normal(shape, np.float32).astype(np.float16)


def batches(request, *, count, most, longest, seed):
    """Random companies of a request: arguments of a call, and at which place it stands in them."""
    rng = np.random.default_rng(seed)
    q, k, v = request
    for _ in range(count):
        batch = int(rng.integers(1, most + 1))
        page = int(rng.choice([1, 7, 16, 64, 256]))
        place = int(rng.integers(batch))
        lengths = rng.integers(0, longest, batch).astype(np.int32)
        lengths[place] = len(k)
        widest = -(-int(lengths.max()) // page) + int(rng.integers(0, 3))
        pool = batch * widest + 3
        table = rng.permutation(pool)[: batch * widest].reshape(batch, widest).astype(np.int32)
        queries = draw(rng, batch, *q.shape)
        queries[place] = q
        caches = [draw(rng, pool, page, KV_HEADS, D_HEAD) for _ in range(2)]
        for cache, rows in zip(caches, (k, v), strict=True):
            for first in range(0, len(rows), page):
                part = rows[first : first + page]
                cache[table[place, first // page], : len(part)] = part
        yield (queries, *caches), {"cache_seqlens": lengths, "block_table": table}, place


def drawn_request(length, q_len, seed=0):
    rng = np.random.default_rng(seed)
    rows = (length, KV_HEADS, D_HEAD)
    return draw(rng, q_len, HEADS, D_HEAD), draw(rng, *rows), draw(rng, *rows)


def bits_in(companies, convert=np.asarray):
    """O and LSE of the request, as many different ones as there are."""
    found = set()
    for arrays, tables, place in companies:
        given = {name: convert(table) for name, table in tables.items()}
        o, lse = flash_attn_with_kvcache(
            *map(convert, arrays), causal=True, return_softmax_lse=True, **given
        )
        pair = [x[place].cpu() if hasattr(x, "cpu") else x[place] for x in (o, lse)]
        found.add(tuple(np.asarray(x).tobytes() for x in pair))
    return found


@pytest.mark.parametrize("length", LENGTHS)
def test_no_company_reaches_the_bits_of_a_request(length, monkeypatch):
    monkeypatch.setenv("FLASHSMITH_DEVICE", "emulator")
    companies = batches(drawn_request(length, q_len=1), count=50, most=4, longest=1300, seed=length)
    assert len(bits_in(companies)) == 1


def test_rows_that_differ_have_other_bits(monkeypatch):
    monkeypatch.setenv("FLASHSMITH_DEVICE", "emulator")
    found = [
        bits_in(batches(drawn_request(70, 1, seed), count=1, most=2, longest=99, seed=1))
        for seed in (0, 1)
    ]
    assert found[0] != found[1]


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("length", "q_len", "count"),
    [(1, 1, 200), (700, 4, 200), (1100, 1, 200), (5000, 1, 200), (5000, 4, 50), (17000, 1, 50)],
)
def test_200_companies_do_not_reach_the_bits_of_a_request(length, q_len, count):
    torch = pytest.importorskip("torch")
    companies = batches(
        drawn_request(length, q_len), count=count, most=12, longest=2000, seed=length + q_len
    )
    assert len(bits_in(companies, lambda array: torch.from_numpy(array).cuda())) == 1


@pytest.mark.gpu
@pytest.mark.parametrize("page", [0, 16], ids=["contiguous", "pages"])
def test_31_others_whose_parts_stay_in_l2_do_not_reach_the_bits_of_a_request(page):
    """32 sequences of 8k read 1 GB, and keep parts; one of them alone does not."""
    torch = pytest.importorskip("torch")
    batch, place, k_len = 32, 17, 8192
    device = default_device("cuda")
    draws = torch.Generator("cuda").manual_seed(5)

    def drawn(*shape):
        return torch.randn(shape, generator=draws, device="cuda", dtype=torch.float16)

    q, k, v = drawn(batch, 1, 32, 128), drawn(batch, k_len, 8, 128), drawn(batch, k_len, 8, 128)
    lengths = torch.full((batch,), k_len - 5, device="cuda", dtype=torch.int32)
    table = torch.randperm(batch * k_len // 16, generator=draws, device="cuda")
    table = table.to(torch.int32).reshape(batch, -1)
    found, kept = [], []
    for some in (slice(place, place + 1), slice(None)):
        caches, paged, facts = (k[some], v[some]), {}, {}
        requests = len(q[some])
        if page:
            caches = [x.reshape(-1, page, 8, 128) for x in (k, v)]
            paged, facts = {"block_table": table[some]}, {"page": page, "pages": len(caches[0])}
        o, lse = flash_attn_with_kvcache(
            *(q[some], *caches),
            cache_seqlens=lengths[some],
            causal=True,
            return_softmax_lse=True,
            **paged,
        )
        found.append([x[place if requests > 1 else 0].clone() for x in (o, lse)])
        problem = AttentionProblem(
            *(requests, 32, 8, 1, k_len, 128, DType.FP16),
            causal=True,
            lse=True,
            k_lengths=True,
            **facts,
        )
        kept.append(choose(problem, device.arch, gpu=device.name).config.kept_parts)
    assert kept == [False, True]
    assert all(map(torch.equal, *found))
