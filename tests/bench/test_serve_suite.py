"""Caches and models as suites: what they hold, that kernels compute it, and how it is timed."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from standin_gpus import plug_in

from flashsmith.base.dtypes import DType
from flashsmith.base.errors import ArgumentError
from flashsmith.bench import versus as module
from flashsmith.bench.peers import Peer, find_peers, torch_tensors
from flashsmith.bench.suite import Shape, of_lengths, read_suite
from flashsmith.bench.versus import OURS, records, versus
from flashsmith.cli.verbs.bench import _rows
from flashsmith.kernels.plans import plan
from flashsmith.measure.environment import environment_of
from flashsmith.measure.interleaved import Comparison, Timed
from flashsmith.measure.plain_read import READ, plain_read
from flashsmith.measure.statistics import ratio_by_round, summarize
from flashsmith.measure.timed_configs import random_inputs
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.cost import cache_bytes
from flashsmith.problem.needs import facts_that_hold
from flashsmith.runtime.devices import default_device
from flashsmith.runtime.emulated import EmulatedDevice
from flashsmith.tuner.choose.choice import choose

ENVIRONMENT = environment_of(EmulatedDevice("sm_90a"))
GIB = 1 << 30
CACHE = AttentionProblem(3, 8, 2, 1, 96, 64, DType.BF16, k_lengths=True)
PAGED = replace(CACHE, page=16, pages=18)


def test_caches_of_servers_span_batches_lengths_groups_and_pages():
    problems = [shape.problem for shape in read_suite("serve", DType.BF16).shapes]
    assert len(problems) == 40
    assert len({shape.name for shape in read_suite("serve", DType.BF16).shapes}) == 40
    assert max(map(cache_bytes, problems)) <= 32 * GIB
    assert {p.group for p in problems} == {1, 4, 8, 16}
    assert {p.page for p in problems} == {0, 16, 64}
    assert all(p.page * p.pages in (0, p.batch * p.k_len) for p in problems)
    for name, least, most in (("batch", 1, 256), ("k_len", 1024, 131072)):
        values = [getattr(p, name) for p in problems]
        assert (min(values), max(values)) == (least, most)


def test_models_bring_their_masks_and_scores():
    shapes = read_suite("models", DType.BF16).shapes
    assert len({shape.name.partition(",")[0] for shape in shapes}) == 12
    facts = {name for shape in shapes for name in facts_that_hold(shape.problem)}
    assert facts >= {"causal", "window_left", "window_right", "softcap", "sinks", "alibi"}
    assert "sequences" in facts
    assert len({shape.problem.group for shape in shapes}) > 4


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("name", ["serve", "models"])
def test_every_shape_is_computed_by_some_kernel(name, arch):
    for dtype in DType:
        for shape in read_suite(name, dtype).shapes:
            assert plan(choose(shape.problem, arch).config, shape.problem, sm_count=132), shape.name


def test_lengths_are_those_of_the_keys():
    suite = of_lengths(read_suite("serve", DType.BF16), [65536])
    assert {shape.problem.k_len for shape in suite.shapes} == {65536}


CACHES = "[[caches]]\nsizes=[[2, 64]]\ngroups=[1]\npages=[0]\nkv_heads=2\nd_head=64\n"
SHAPE = "[[shape]]\nname='x'\nbatch=1\nheads=3\nkv_heads=1\nlength=9\nd_head=64\nmask='full'\n"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (CACHES, r"\[\[caches\]\] are missing or unknown: q_len; known are d_head, groups"),
        (f"{CACHES}q_len=1\nsizes=[[2]]", "is not a TOML file"),
        (f"{CACHES}q_len='1'", "has a field of the wrong type"),
        (f"{CACHES.replace('[[2, 64]]', '[[2]]')}q_len=1", "has a field of the wrong type"),
        (f"{SHAPE}windw=3", "unknown: windw; known are .*, and if wanted alibi, scale"),
        (f"{SHAPE}window_left=-3", r"mine\.toml: window_left is -3"),
    ],
)
def test_a_wrong_cache_or_fact_is_refused_by_name(tmp_path, text, says):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(ArgumentError, match=says):
        read_suite(str(path), DType.BF16)


def test_pages_that_are_timed_lie_in_any_order_and_each_is_read_once():
    table = random_inputs(PAGED)["block_table"]
    assert table.shape == (3, 6)
    assert sorted(table.ravel()) == list(range(18))
    assert list(table.ravel()) != sorted(table.ravel())


@pytest.mark.parametrize("planted", [0, 33_000, 36_999])
def test_the_plain_read_reads_every_chunk_and_none_behind(planted, monkeypatch):
    device = EmulatedDevice()
    count = 37_000  # eight at a time, and a rest
    chunks = np.zeros((count, 4), np.uint32)
    chunks[planted, 3] = 0x12345678  # what the kernel reports
    address = device.allocate(chunks.nbytes)
    device.upload(address, chunks)
    made = []
    allocate = device.allocate
    monkeypatch.setattr(device, "allocate", lambda n: made.append(allocate(n)) or made[-1])
    with plain_read(device, address, chunks.nbytes) as contender:
        (sink,) = made
        device.upload(sink, np.zeros(1, np.uint32))
        contender.launch(0)
        assert device.download(sink, 4).view(np.uint32)[0] == 0x12345678


def compare_stand_in(device, contenders, *, rounds, regime):
    """Starts everyone once; times are made up: ours 200 µs, then 150, 300, …"""
    samples = []
    for number, contender in enumerate(contenders):
        contender.launch(0)
        samples.append([(200.0, 150.0, 300.0)[number]] * rounds)
    timed = tuple(
        Timed(c.name, tuple(s), summarize(s), ratio_by_round(samples[0], s))
        for c, s in zip(contenders, samples, strict=True)
    )
    return Comparison(regime, timed, summarize([1.0]), ())


@pytest.fixture
def gpus(monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.setattr(module, "compare", compare_stand_in)
    monkeypatch.setattr(module, "torch_tensors", partial(torch_tensors, where="cpu"))
    return plug_in(monkeypatch, "NVIDIA H200")


@pytest.mark.parametrize("problem", [CACHE, PAGED], ids=["contiguous", "paged"])
def test_a_cache_is_timed_beside_a_plain_read_of_it(gpus, problem):
    device = default_device("cuda")
    found = versus(device, Shape("tiny", problem), [], rounds=15, regime="burst")
    assert [timed.name for timed in found.comparison.timed] == [OURS, READ]
    assert [started.kernel for started in gpus.started][-1] == "read_all"
    (row,) = _rows(found)
    assert (row["ours_us"], row["read_us"], row["of_read"]) == (200.0, 150.0, 0.75)
    made = {r.what["name"]: r for r in records(found, ENVIRONMENT, "serve")}
    assert made[OURS].result["of_read"] == pytest.approx(0.75)
    assert made[READ].result["gb_s"] == pytest.approx(cache_bytes(problem) / 150 / 1e3)
    assert made[OURS].what["config"].startswith("decode(")
    assert made[OURS].problem == problem


def test_a_peer_is_raced_only_on_what_it_computes():
    plain = AttentionProblem(1, 4, 4, 64, 64, 64, causal=True)
    known = {peer.name: peer for peer in find_peers([])}
    assert all(peer.computes(plain) for peer in known.values())
    window = replace(plain, window_left=9)
    assert not known["cuDNN"].computes(window)
    assert known["flash-attn 2"].computes(window)
    for other in (replace(plain, alibi=True), PAGED, replace(plain, sequences=2)):
        assert not any(peer.computes(other) for peer in known.values())
    draft = replace(plain, q_len=4)  # torch counts its mask from the first key
    assert not known["cuDNN"].computes(draft)
    assert known["cuDNN"].computes(replace(draft, q_len=1, causal=False, k_lengths=True))
    assert Peer("mine", print).computes(PAGED)


def test_flash_attn_is_told_windows_and_caps(monkeypatch):
    told = {}

    class Stand:
        def flash_attn_func(self, q, k, v, **given):
            told.update(given)

    monkeypatch.setattr("importlib.import_module", lambda name: Stand())
    (peer,) = find_peers(["flash-attn 2"])
    problem = AttentionProblem(1, 1, 1, 64, 64, 64, causal=True, window_left=9, softcap=5.0)
    peer.make(problem, None, None, None)()
    assert (told["window_size"], told["softcap"], told["causal"]) == ((9, 0), 5.0, True)
