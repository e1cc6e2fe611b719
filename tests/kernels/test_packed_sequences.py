"""Packed sequences in both forward families: lengths in memory, of any size, and of nobody else."""

from dataclasses import replace

import numpy as np
import pytest
from packed_boundaries import PACKED, WILD, given_boundaries, off_by_one

from flashsmith.arch import get as get_arch
from flashsmith.base.errors import ArgumentError, Unsupported
from flashsmith.check import verdict
from flashsmith.check.cases import Case, drawn_boundaries, inputs_of
from flashsmith.check.placement import (
    MARGIN,
    fill_buffers,
    locations_of,
    scratch_buffer,
    scratch_location,
)
from flashsmith.check.verdict import check_case, run_case
from flashsmith.kernels.launch import SCRATCH
from flashsmith.kernels.parse import parse_config
from flashsmith.kernels.plans import needs_of, plan, scratch_bytes
from flashsmith.kernels.sm80_decode.config import Sm80DecodeConfig
from flashsmith.kernels.tile_list.sizes import list_bytes, most_tiles
from flashsmith.problem.reference import reference
from flashsmith.problem.sequences import boundaries_in, sequences_of
from flashsmith.runtime.run import run_arrays

LOOP = "overlap+early_rescale+tiles_DYNAMIC+sections"
MMA = "(BF16, 64, 64, 64, 4): async+eager+swizzled+load_0_2_2_tiles+opt_softmax"
WGMMA = f"hopper(BF16, 64, 2, 128): kv_2+q_4+{LOOP}+stats_SUM+lazy_8+o_smem+regs_232_40"
BOTH = pytest.mark.parametrize("text", [MMA, WGMMA], ids=["mma", "wgmma"])
SPLIT = (
    f"hopper(BF16, 64, 2, 128): kv_2+q_4+{LOOP}+stats_VOTE+lazy_8+halves+early_tests+split+o_smem"
    "+late_store+regs_232_40"
)
ALONE = [
    {},
    {"causal": True},
    {"causal": True, "diagonal": 0},
    {"lse": False, "heads": 2, "kv_heads": 2},
    {"sequences": 1},
    {"sequences": 1, "causal": True, "q_len": 200, "k_len": 200},
    {"sequences": 40, "k_len": 150},
    {"sequences": 40, "q_len": 40, "causal": True},
]


def problem_of(config, **facts):
    return replace(PACKED, **{"dtype": config.dtype, "d_head": config.d_head, **facts})


def require_right(device, config, problem, name="packed", placement="padded"):
    found = check_case(device, config, Case(name, problem, placement=placement))
    found.require_ok(f"{config.short_form()} on {problem}")


@pytest.mark.parametrize(
    "facts", ALONE, ids=lambda facts: " ".join(f"{k}={v}" for k, v in facts.items()) or "plain"
)
@BOTH
def test_sequences_of_any_length_are_computed_by_both_families(text, facts, device):
    config = parse_config(text)
    require_right(device, config, problem_of(config, **facts))


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@BOTH
def test_thousands_of_sequences_of_one_token_or_none(text, causal, device):
    config = parse_config(text)
    problem = problem_of(config, heads=1, q_len=40, k_len=60, sequences=2000, causal=causal)
    require_right(device, config, problem)


# Lengths that lie


@pytest.mark.parametrize("name", WILD)
@BOTH
def test_wild_boundaries_end_inside_the_tensor(text, name, device, monkeypatch):
    """Between canaries: no element outside is read or written, every row inside is written."""
    config = parse_config(text)
    # In turn: with and without a mask in each family, and for all boundaries.
    causal = (list(WILD).index(name) + (text == MMA)) % 2 == 0
    given_boundaries(monkeypatch, *WILD[name])
    require_right(device, config, problem_of(config, sequences=4, causal=causal), name=name)


def test_boundaries_are_clamped_and_never_fall():
    wild = np.array([-3, 40, 20, 900, 7], np.int32)
    assert boundaries_in(wild, 100).tolist() == [0, 40, 40, 100, 100]


# Neighbours


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@BOTH
def test_what_is_no_number_stays_in_its_sequence(text, causal, device):
    """NaN in K, V and Q of one sequence; the others' bits are those of a call without it."""
    config = parse_config(text)
    problem = problem_of(config, sequences=5, causal=causal, q_len=300, k_len=300)
    plain = dict(inputs_of(Case("neighbours", problem)))
    ends = np.array([0, 70, 71, 150, 260, 300], np.int32)
    plain["cu_seqlens_q"] = plain["cu_seqlens_k"] = ends.view(np.uint32)
    spoilt = {name: bits.copy() for name, bits in plain.items()}
    for name in "qkv":
        spoilt[name][:, 150:260] = 0x7FC0
    before, after = (run_arrays(device, config, problem, bits) for bits in (plain, spoilt))
    clean = np.r_[0:150, 260:300]
    np.testing.assert_array_equal(before["o"][:, clean], after["o"][:, clean])
    np.testing.assert_array_equal(before["lse"][..., clean], after["lse"][..., clean])
    assert np.isnan(after["lse"].view(np.float32)[..., 150:260]).all()


# Mutants


def is_right(device, text, **facts):
    config = parse_config(text)
    return check_case(device, config, Case("mutant", problem_of(config, **facts))).ok


@pytest.mark.parametrize(
    ("table", "change"),
    [
        ("cu_seqlens_q", off_by_one),
        ("cu_seqlens_k", off_by_one),
        ("cu_seqlens_k", lambda bits: np.roll(bits, 1)),  # another sequence's keys
    ],
    ids=["rows off by one", "keys off by one", "keys of another sequence"],
)
@BOTH
def test_wrong_boundaries_are_noticed(text, table, change, device, monkeypatch):
    facts = {"sequences": 3, "causal": True}
    assert is_right(device, text, **facts)

    def inputs(case):
        return {n: change(bits) if n == table else bits for n, bits in inputs_of(case).items()}

    monkeypatch.setattr(verdict, "inputs_of", inputs)
    assert not is_right(device, text, **facts)


# The list of tiles


def listed(device, config, problem):
    """The entries of the list that a launch left in scratch: eight numbers each."""
    case = Case("list", problem)
    locations = locations_of(case)
    before = fill_buffers(case, locations, inputs_of(case))
    n_bytes = scratch_bytes(plan(config, problem, sm_count=device.sm_count))
    locations[SCRATCH] = scratch_location(n_bytes)
    before[SCRATCH] = scratch_buffer(locations[SCRATCH])
    words = run_case(device, config, case, locations, before)[SCRATCH][MARGIN:].view(np.int32)
    return words[4 : 4 + 8 * words[0]].reshape(-1, 8)


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_the_list_has_every_row_once_the_longest_tiles_first(causal, device):
    config = parse_config(MMA)
    problem = problem_of(config, sequences=30, q_len=700, k_len=900, heads=1, causal=causal)
    entries = listed(device, config, problem)
    found = []
    for q_begin, _, q_len, _, row, *_ in entries:
        found += range(q_begin + row, q_begin + min(row + config.tile_q, q_len))
    assert sorted(found) == list(range(problem.q_len))
    works = []
    for of in sequences_of(problem, inputs_of(Case("list", problem))):
        starts = range(0, of.mask.q_len, config.tile_q)
        spans = [of.mask.span(row, row + config.tile_q) for row in starts]
        works += [-(-count // config.tile_k) for _, count in spans]
    at = {(int(e[0]), int(e[4])): place for place, e in enumerate(entries)}
    of_entry = [0] * len(entries)
    for work, (key, place) in zip(works, sorted(at.items()), strict=True):
        del key
        of_entry[place] = work
    assert of_entry == sorted(works, reverse=True)
    np.testing.assert_array_equal(entries, listed(device, config, problem))


def test_tiles_of_a_sequence_stand_together_where_all_see_the_same(device):
    config = parse_config(MMA)
    entries = listed(device, config, problem_of(config, sequences=9, q_len=900, heads=1))
    for place, entry in enumerate(entries):
        assert place == entry[5] + entry[4] // config.tile_q


@pytest.mark.parametrize("seed", range(20))
def test_the_host_knows_how_long_the_list_is_at_most(seed):
    draw = np.random.default_rng(seed)
    total, sequences, tile = draw.integers(1, 5000), draw.integers(1, 300), draw.choice([64, 384])
    lengths = np.diff(drawn_boundaries(int(sequences), int(total), draw))
    problem = replace(PACKED, q_len=int(total), sequences=int(sequences))
    needed = int(sum(-(-lengths // tile)))
    assert needed <= most_tiles(problem, int(tile))
    assert list_bytes(problem, int(tile)) > 16 + 32 * needed


# What a problem is


def test_the_truth_is_that_of_each_sequence_alone():
    problem = replace(PACKED, causal=True)
    draw = np.random.default_rng(3)
    inputs = {
        "q": draw.standard_normal((1, 300, 3, 64)),
        "k": draw.standard_normal((1, 411, 1, 64)),
        "v": draw.standard_normal((1, 411, 1, 64)),
        "cu_seqlens_q": drawn_boundaries(7, 300, draw),
        "cu_seqlens_k": drawn_boundaries(7, 411, draw),
    }
    found = reference(problem, inputs)
    q, k = inputs["cu_seqlens_q"], inputs["cu_seqlens_k"]
    for i in range(7):
        rows, keys = slice(q[i], q[i + 1]), slice(k[i], k[i + 1])
        alone = replace(
            problem, sequences=0, q_len=int(q[i + 1] - q[i]), k_len=int(k[i + 1] - k[i])
        )
        one = reference(
            alone,
            {"q": inputs["q"][:, rows], "k": inputs["k"][:, keys], "v": inputs["v"][:, keys]},
        )
        np.testing.assert_array_equal(found["o"][:, rows], one["o"])
        np.testing.assert_array_equal(found["lse"][..., rows], one["lse"])


def test_a_kernel_for_packed_sequences_computes_nothing_else():
    config = parse_config(WGMMA)
    packed = needs_of(config, problem_of(config, causal=True))
    dense = needs_of(config, problem_of(config, causal=True, sequences=0))
    assert "sequences" in packed
    assert not packed.covers(dense)
    assert not dense.covers(packed)


def test_a_decode_kernel_neither_takes_packed_sequences_nor_is_chosen_for_them():
    problem = replace(PACKED, q_len=4, k_len=4000)
    assert not Sm80DecodeConfig.candidates(problem, get_arch("sm_90a"))
    config = Sm80DecodeConfig.candidates(replace(problem, sequences=0), get_arch("sm_90a"))[0]
    with pytest.raises(Unsupported, match="packed sequences on pages of keys only"):
        plan(config, problem, sm_count=132)


def test_tiles_are_not_split_and_the_list_comes_first():
    config = parse_config(SPLIT)
    assert config.split_last
    first, second = plan(config, problem_of(config, q_len=5000, k_len=5000), sm_count=132)
    assert first.config.NAME == "tile_list"
    assert first.geometry.grid == (1, 1, 1)
    assert second.split.ranges == 0
    assert first.scratch_bytes == second.scratch_bytes


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        ({"batch": 2}, "packed sequences are a batch of one"),
        ({"page": 16, "pages": 30}, "k_lengths False and page 16; packed sequences whose keys lie"),
        ({"sequences": -1}, "sequences is -1; it must be an integer of at least 0"),
    ],
)
def test_what_packed_sequences_cannot_be_is_refused(facts, says):
    with pytest.raises(ArgumentError, match=says):
        replace(PACKED, **facts)
