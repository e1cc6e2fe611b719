"""The decode kernel: right at its edges, never outside the pool, and the same bits in company."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashsmith.base.dtypes import DType, to_bits
from flashsmith.base.errors import Unsupported
from flashsmith.check.cases import Case, inputs_of, quick_cases, serving_cases
from flashsmith.check.tolerance import distance, expectation
from flashsmith.check.verdict import check_case
from flashsmith.compile.compiler import compile_kernel
from flashsmith.emulator.options import EmulatorOptions
from flashsmith.kernels import parse_config, resolve_key
from flashsmith.kernels.plans import needs_of, plan
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.signature import signature_of
from flashsmith.runtime.emulated import EmulatedDevice
from flashsmith.runtime.run import run_arrays
from flashsmith.runtime.tensors import numbers_of

SMALL = parse_config("decode(BF16, 64, 16, 16, 2): slice_128+most_32+stages_3+ctas_2")
TEAMS = parse_config(
    "decode(FP16, 64, 32, 32, 4): slice_128+most_32+stages_2+ctas_2+persistent+kept_parts"
)
CONFIGS = [
    SMALL,
    TEAMS,
    parse_config("decode(BF16, 128, 64, 16, 4): slice_128+most_8+stages_2+ctas_1"),
    parse_config("decode(FP16, 256, 16, 16, 2): slice_128+most_32+stages_2+ctas_1"),
]
_EMULATOR = EmulatedDevice()


@pytest.mark.parametrize("config", CONFIGS[:2], ids=str)
def test_what_servers_ask_for_is_right(config, device):
    wrong = [v for case in serving_cases(config) if not (v := check_case(device, config, case)).ok]
    assert not wrong


@pytest.mark.parametrize("config", CONFIGS[2:], ids=str)
def test_quick_cases_are_right_where_a_team_has_several_warps_or_q_stays_in_memory(config, device):
    wrong = [v for case in quick_cases(config) if not (v := check_case(device, config, case)).ok]
    assert not wrong


@pytest.mark.gpu
@pytest.mark.parametrize("config", resolve_key("decode"), ids=str)
def test_every_configuration_of_the_set_is_right(config, device):
    cases = (*serving_cases(config), *quick_cases(config))
    wrong = [v for case in cases if not (v := check_case(device, config, case)).ok]
    assert not wrong


FACTS = {
    "softcap": {"softcap": 3.0},
    "sinks": {"sinks": True},
    "alibi": {"alibi": True},
    "alibi and lengths": {"alibi": True, "k_lengths": True},
    "window and pages": {"window_left": 40, "page": 16, "pages": 40},
    "two edges": {"causal": False, "window_left": 30, "window_right": 20, "k_lengths": True},
    "top left": {"diagonal": 0, "k_lengths": True},
}


@pytest.mark.parametrize("facts", FACTS.values(), ids=FACTS)
def test_scores_and_masks_are_those_of_the_reference(facts, device):
    problem = AttentionProblem(2, 6, 2, 5, 300, 64, causal=True, lse=True)
    verdict = check_case(device, SMALL, Case("facts", replace(problem, **facts)))
    assert verdict.ok, verdict


@settings(max_examples=25, deadline=None)
@given(
    batch=st.integers(1, 4),
    kv_heads=st.integers(1, 3),
    group=st.integers(1, 9),
    q_len=st.integers(1, 4),
    k_len=st.integers(1, 420),
    d_head=st.sampled_from([8, 56, 64]),
    page=st.sampled_from([0, 1, 3, 8, 16, 64, 256]),
    lengths=st.booleans(),
    causal=st.booleans(),
    pool=st.floats(0.3, 1.5),
)
def test_any_shape_is_right(
    batch, kv_heads, group, q_len, k_len, d_head, page, lengths, causal, pool
):
    pages = max(int(pool * batch * -(-k_len // page)), 1) if page else 0
    problem = AttentionProblem(
        *(batch, kv_heads * group, kv_heads, q_len, k_len, d_head),
        causal=causal,
        lse=True,
        k_lengths=lengths,
        page=page,
        pages=pages,
    )
    verdict = check_case(_EMULATOR, SMALL, Case("any", problem, placement="padded"))
    assert verdict.ok, (problem, verdict)


def outputs(device, config, problem, inputs):
    found = run_arrays(device, config, problem, inputs)
    expected = expectation(problem, inputs)
    for role in signature_of(problem).outputs(problem):
        numbers = numbers_of(role, found[role.name], problem)
        assert distance(role.name, expected[role.name], numbers).ok, role.name
    return found


@pytest.mark.parametrize("lengths", [[0, 1, 127], [128, 129, 300], [-5, 400, 300]])
def test_lengths_end_where_they_say_and_inside_the_tensor(lengths, device):
    problem = AttentionProblem(3, 4, 2, 2, 300, 64, causal=True, lse=True, k_lengths=True)
    inputs = dict(inputs_of(Case("lengths", problem)))
    inputs["k_lengths"] = np.array(lengths, np.int32).view(np.uint32)
    found = outputs(device, SMALL, problem, inputs)
    if 0 in lengths:
        assert not found["o"][0].any()
        assert np.isneginf(found["lse"][0].view(np.float32)).all()


def test_what_lies_behind_a_sequence_is_never_looked_at(device):
    problem = AttentionProblem(2, 4, 2, 1, 300, 64, lse=True, k_lengths=True, page=16, pages=40)
    inputs = dict(inputs_of(Case("behind", problem)))
    lengths, table = np.array([150, 33], np.int32), np.arange(38, dtype=np.int32).reshape(2, 19)
    inputs |= {"k_lengths": lengths.view(np.uint32), "block_table": table.view(np.uint32)}
    first = run_arrays(device, SMALL, problem, inputs)
    for name in ("k", "v"):
        rows = inputs[name].copy()
        rows[10:19] = rows[19 + 3 :] = 0x7FC1  # NaN
        rows[9, 150 % 16 :] = rows[19 + 2, 33 % 16 :] = 0x7FC1
        inputs[name] = rows
    again = run_arrays(device, SMALL, problem, inputs)
    for name, bits in first.items():
        np.testing.assert_array_equal(bits, again[name])


def test_entries_that_name_no_page_are_clamped_inside_the_pool(device):
    problem = AttentionProblem(2, 4, 2, 1, 64, 64, lse=True, page=16, pages=5)
    inputs = dict(inputs_of(Case("clamped", problem)))
    table = np.array([[0, -1, 5, 2**31 - 1], [4, 3, -(2**31), 1]], np.int32)
    inputs["block_table"] = table.view(np.uint32)
    outputs(device, SMALL, problem, inputs)


def in_order(sm_count=4):
    """An emulator whose bits are a GPU's."""
    return EmulatedDevice(
        sm_count=sm_count, options=EmulatorOptions(checks=False, mma_in_order=True)
    )


def serve(device, config, requests, *, page, seed, q_len=2):
    """O and LSE of every request, in one call of a paged cache whose pages lie in any order."""
    heads, kv_heads, d_head = 6, 2, 64
    widest = -(-max(r["k"].shape[0] for r in requests) // page)
    random = np.random.default_rng(seed)
    pages = len(requests) * widest + 5
    order = random.permutation(pages)[: len(requests) * widest].reshape(len(requests), widest)
    pool = {
        name: to_bits(
            random.standard_normal((pages, page, kv_heads, d_head), np.float32), config.dtype
        )
        for name in "kv"
    }
    for number, request in enumerate(requests):
        for name in "kv":
            rows = request[name]
            for at in range(0, rows.shape[0], page):
                part = rows[at : at + page]
                pool[name][order[number, at // page], : part.shape[0]] = part
    problem = AttentionProblem(
        *(len(requests), heads, kv_heads, q_len, widest * page, d_head, config.dtype),
        causal=True,
        lse=True,
        k_lengths=True,
        page=page,
        pages=pages,
    )
    lengths = np.array([r["k"].shape[0] for r in requests], np.int32)
    inputs = {
        "q": np.stack([r["q"] for r in requests]),
        **pool,
        "k_lengths": lengths.view(np.uint32),
        "block_table": order.astype(np.int32).view(np.uint32),
    }
    found = run_arrays(device, config, problem, inputs)
    return [(found["o"][i], found["lse"][i]) for i in range(len(requests))]


def request(length, seed, dtype, q_len=2):
    random = np.random.default_rng(seed)
    shapes = {"q": (q_len, 6, 64), "k": (length, 2, 64), "v": (length, 2, 64)}
    return {n: to_bits(random.standard_normal(s, np.float32), dtype) for n, s in shapes.items()}


@pytest.mark.parametrize("config", CONFIGS[:2], ids=str)
@pytest.mark.parametrize("length", [1, 100, 128, 333])
def test_a_request_has_the_same_bits_alone_and_in_company(config, length):
    mine = request(length, 7, config.dtype)
    others = [request(n, 20 + i, config.dtype) for i, n in enumerate((5, 400, 129, 0, 257))]
    ((o, lse),) = serve(in_order(), config, [mine], page=16, seed=1)
    companies = [
        ([others[0], mine], 16, 4),
        ([*others, mine], 16, 4),
        ([mine, *others], 48, 4),
        ([*others[:3], mine, *others[3:]], 1, 9),
        ([mine, mine, others[1]], 256, 1),
    ]
    for number, (requests, page, sm_count) in enumerate(companies):
        found = serve(in_order(sm_count), config, requests, page=page, seed=number)
        for at in [i for i, one in enumerate(requests) if one is mine]:
            np.testing.assert_array_equal(found[at][0], o)
            np.testing.assert_array_equal(found[at][1], lse)


def test_a_request_has_the_same_bits_where_its_company_keeps_parts():
    config = replace(SMALL, quick_start=True, quick_end=True)
    mine = request(333, 7, config.dtype)
    others = [request(n, 20 + i, config.dtype) for i, n in enumerate((5, 400, 700))]
    ((o, lse),) = serve(in_order(), config, [mine], page=16, seed=1)
    kept = replace(config, kept_parts=True)
    *_, found = serve(in_order(1), kept, [*others, mine], page=48, seed=2)
    np.testing.assert_array_equal(found[0], o)
    np.testing.assert_array_equal(found[1], lse)


def test_contiguous_and_paged_caches_have_the_same_bits(device):
    problem = AttentionProblem(2, 6, 2, 2, 288, 64, causal=True, lse=True)
    inputs = dict(inputs_of(Case("contiguous", problem)))
    plain = run_arrays(device.in_fixed_order(), SMALL, problem, inputs)
    paged = {n: inputs[n].reshape(36, 16, 2, 64) for n in "kv"}
    table = np.arange(36, dtype=np.int32).reshape(2, 18)
    more = {"q": inputs["q"], **paged, "block_table": table.view(np.uint32)}
    with_pages = replace(problem, page=16, pages=36)
    lengths = {"k_lengths": np.full(2, 288, np.int32).view(np.uint32)}
    found = [
        run_arrays(device.in_fixed_order(), SMALL, with_pages, more),
        run_arrays(
            device.in_fixed_order(), SMALL, replace(problem, k_lengths=True), inputs | lengths
        ),
    ]
    for other in found:
        np.testing.assert_array_equal(other["o"], plain["o"])
        np.testing.assert_array_equal(other["lse"], plain["lse"])


@pytest.mark.parametrize("page", [16, 48])
def test_a_page_that_is_looked_up_once_for_a_kv_block_gives_the_same_bits(page):
    problem = AttentionProblem(
        *(2, 6, 2, 2, 300, 64), causal=True, lse=True, k_lengths=True, page=page, pages=40
    )
    inputs = dict(inputs_of(Case("whole", problem)))
    table = inputs["block_table"].view(np.int32).copy()
    table[0, :2] = -3, 999  # entries that name no page
    inputs["block_table"] = table.view(np.uint32)
    first, found = (
        run_arrays(in_order(), replace(SMALL, whole_pages=whole), problem, inputs)
        for whole in (False, True)
    )
    for name, bits in first.items():
        np.testing.assert_array_equal(found[name], bits)


def test_pages_that_are_not_whole_kv_blocks_are_refused():
    config = replace(SMALL, whole_pages=True)
    for page in (8, 24):
        problem = AttentionProblem(2, 6, 2, 1, 300, 64, page=page, pages=40)
        with pytest.raises(Unsupported, match="for pages of a multiple of 16 rows"):
            plan(config, problem, sm_count=4)


@pytest.mark.parametrize("k_len", [200, 300, 4097])
def test_ctas_that_take_one_slice_and_several_give_the_same_bits(k_len):
    # One slice of two, three slices, seventeen that are twice as long.
    config = replace(SMALL, slice_keys=128)
    problem = AttentionProblem(1, 4, 1, 1, k_len, 64, lse=True)
    inputs = dict(inputs_of(Case("one", problem)))
    first = outputs(in_order(), config, problem, inputs)
    behind = 3 * k_len  # rows that the sequence may have, and other sequences beside it
    more = replace(problem, batch=3, k_len=behind, k_lengths=True)
    lengths = np.array([k_len // 3, k_len, 0], np.int32)
    company = {name: np.zeros((3, *inputs[name].shape[1:]), np.uint16) for name in "q"}
    company |= {name: np.zeros((3, behind, 1, 64), np.uint16) for name in "kv"}
    for name in "qkv":
        company[name][1, : inputs[name].shape[1]] = inputs[name][0]
    company["k_lengths"] = lengths.view(np.uint32)
    for several in ({}, {"persistent": True}, {"runs": True}):
        kind = replace(config, **several)
        (launch,) = plan(kind, more, sm_count=4)
        assert (launch.geometry.grid == (8, 1, 1)) == bool(several)
        found = run_arrays(in_order(), kind, more, company)
        np.testing.assert_array_equal(found["o"][1], first["o"][0])
        np.testing.assert_array_equal(found["lse"][1], first["lse"][0])


def test_a_row_has_the_same_bits_whatever_its_neighbours_hold(device):
    problem = AttentionProblem(1, 6, 2, 3, 419, 64, DType.FP16, causal=True, lse=True)
    inputs = dict(inputs_of(Case("rows", problem)))
    other = to_bits(np.random.default_rng(3).standard_normal((1, 3, 6, 64), np.float32) * 40, 5)
    kept = (0, 1, slice(2, 4))  # heads 2 and 3 of token 1: both tiles
    other[kept] = inputs["q"][kept]
    config = replace(SMALL, dtype=DType.FP16)
    first = run_arrays(device.in_fixed_order(), config, problem, inputs)
    again = run_arrays(device.in_fixed_order(), config, problem, {**inputs, "q": other})
    np.testing.assert_array_equal(first["o"][kept], again["o"][kept])
    assert not np.array_equal(first["o"], again["o"])


def test_counters_are_left_as_they_were_found():
    device = EmulatedDevice()
    problem = AttentionProblem(2, 6, 2, 2, 300, 64, lse=True)
    inputs = inputs_of(Case("twice", problem))
    first, again = (run_arrays(device, SMALL, problem, inputs)["o"] for _ in range(2))
    np.testing.assert_array_equal(first, again)
    assert not device.download(device.workspace(4096 * 4), 4096 * 4).any()


def test_launches_of_a_batch_with_too_many_tiles_are_right(device, monkeypatch):
    monkeypatch.setattr("flashsmith.kernels.sm80_decode.plan.MOST_COUNTERS", 5)
    problem = AttentionProblem(7, 6, 2, 2, 300, 64, lse=True, k_lengths=True)
    assert len(plan(SMALL, problem, sm_count=4)) == 4
    verdict = check_case(device, SMALL, Case("many tiles", problem))
    assert verdict.ok, verdict


_MANY = np.sort(np.random.default_rng(2).integers(0, 90, 71))
_MANY[5::3] = _MANY[:-5:3]
BOUNDARIES = {
    "falling": [0, 50, 49, 51, 20, 90],
    "falling behind": [3, 90, 4, 60, 0, 10],
    "outside": [-(2**31), 2**31 - 1, 0, 17, -1, 500],
    "of no row": [40, 40, 7, 7, 0, 0],
    "more than a warp has lanes": _MANY,
}


@pytest.mark.parametrize("config", CONFIGS[:2], ids=["one slice a cta", "in turn"])
@pytest.mark.parametrize("ends", BOUNDARIES.values(), ids=BOUNDARIES)
def test_no_packed_row_is_of_two_sequences(config, ends, device, monkeypatch):
    monkeypatch.setattr("flashsmith.kernels.sm80_decode.plan.MOST_COUNTERS", 80)
    problem = AttentionProblem(
        *(1, 6, 2, 90, 400, 64, config.dtype),
        causal=True,
        lse=True,
        k_lengths=True,
        page=16,
        pages=40,
        sequences=len(ends) - 1,
    )
    inputs = dict(inputs_of(Case("falling", problem)))
    inputs["cu_seqlens_q"] = np.array(ends, np.int32).view(np.uint32)
    outputs(device, config, problem, inputs)


QUICK = "+evict_first+quick_start+quick_end"


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_kernels_that_are_chosen_first_spill_nothing(arch):
    for text in (
        "decode(BF16, 64, 16, 32, 4): slice_512+most_32+stages_3+ctas_2",
        f"decode(BF16, 128, 16, 16, 4): slice_512+most_32+stages_3+ctas_2+runs{QUICK}",
        f"decode(BF16, 128, 16, 16, 4): slice_1024+most_32+stages_2+ctas_3{QUICK}",
        "decode(BF16, 128, 32, 16, 4): slice_1024+most_16+stages_4+ctas_3",
        "decode(BF16, 256, 16, 16, 4): slice_256+most_32+stages_3+ctas_1",
    ):
        config = parse_config(text)
        problem = AttentionProblem(1, 8, 2, 1, 8191, config.d_head, config.dtype)
        for asked in (problem, replace(problem, k_lengths=True, page=16, pages=9)):
            kernel = compile_kernel(config, needs_of(config, asked), arch)
            assert kernel.resources.spill_bytes == 0, text
