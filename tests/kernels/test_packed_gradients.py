"""Gradients of packed sequences: each its own, zero in rows of none, the same bits always.

On both families of kernels.
"""

import random
from dataclasses import replace

import numpy as np
import pytest
from packed_boundaries import PACKED, WILD, given_boundaries, off_by_one

from flashsmith.check import verdict
from flashsmith.check.cases import Case, inputs_of
from flashsmith.check.verdict import check_case
from flashsmith.compile.compiler import compile_kernel
from flashsmith.emulator.options import EmulatorOptions
from flashsmith.kernels.parse import parse_config
from flashsmith.kernels.plans import plan
from flashsmith.kernels.sm90_backward import plan as sm90_plan
from flashsmith.kernels.tile_list.plan import list_launch
from flashsmith.problem.needs import Needs
from flashsmith.runtime.emulated import EmulatedDevice
from flashsmith.runtime.run import run_arrays
from flashsmith.tuner.choose.choice import choose

ALL = "turns+fold+early_dv+late_fences"
MMA = "bwd(BF16, 64): dkv_64_64_4+dq_64_64_4"
BUFFERED = "bwd(FP16, 64): dkv_128_64_8+dq_64_32_4+dkv_buffer+dq_buffer"
WGMMA = f"hopper_bwd(BF16, 64): ds_2+{ALL}+sections"
HEADS_IN_TURN = f"hopper_bwd(BF16, 128): ds_3+{ALL}"
LOADED = "hopper_bwd(FP16, 128): ds_2+turns+early_dv"
WIDE = "hopper_bwd(BF16, 256): ds_2+dq_red+sections"
BOTH = pytest.mark.parametrize("text", [MMA, WGMMA], ids=["mma", "wgmma"])
GRADIENTS = replace(PACKED, operation="backward", lse=False, heads=2)
ALONE = [
    {"dlse": True},
    {"causal": True, "heads": 3, "kv_heads": 1},
    {"causal": True, "diagonal": 0, "kv_heads": 2},
    {"causal": True, "sequences": 40, "q_len": 60, "k_len": 80},
    {"window_left": 30, "window_right": 5},
    {"softcap": 2.0, "alibi": True, "d_head": 40},
]
# One for each way in which wgmma's kernels walk, mask, add, and draw heads.
ON_WGMMA = [
    (WGMMA, {"dlse": True}),
    (WGMMA, {"causal": True, "sequences": 40, "q_len": 60, "k_len": 80}),
    (HEADS_IN_TURN, {"causal": True, "heads": 3, "kv_heads": 1}),
    (LOADED, {"window_left": 30, "window_right": 5, "alibi": True, "d_head": 40}),
    (WIDE, {"causal": True, "diagonal": 0, "heads": 3, "q_len": 150, "k_len": 211}),
    (WIDE, {"window_left": 30, "alibi": True, "d_head": 136, "q_len": 150, "k_len": 211}),
]


def problem_of(config, **facts):
    return replace(GRADIENTS, **{"dtype": config.dtype, "d_head": config.d_head, **facts})


def require_right(device, config, problem, name="packed"):
    found = check_case(device, config, Case(name, problem, placement="padded"))
    found.require_ok(f"{config.short_form()} on {problem}")


@pytest.mark.parametrize(
    "facts", ALONE, ids=lambda facts: " ".join(f"{k}={v}" for k, v in facts.items())
)
def test_sequences_of_any_length_have_their_own_gradients(facts, device):
    config = parse_config(MMA)
    require_right(device, config, problem_of(config, **facts))


@pytest.mark.parametrize(("text", "facts"), ON_WGMMA, ids=str)
def test_on_wgmma_they_have_too(text, facts, device):
    config = parse_config(text)
    require_right(device, config, problem_of(config, **facts))


def drawn_facts(seed, text):
    """Lengths, heads, masks and scores, together."""
    draw = random.Random(seed)
    heads, kv_heads = draw.choice([(3, 1), (4, 2), (1, 1), (2, 2)])
    found = {
        "heads": heads,
        "kv_heads": kv_heads,
        "q_len": draw.choice([1, 67, 300]),
        "k_len": draw.choice([1, 77, 411]),
        "sequences": draw.choice([1, 2, 5, 17]),
        "causal": draw.random() < 0.5,
        "diagonal": draw.choice([None, None, 0, -9]),
        "window_left": draw.choice([None, None, 0, 40]),
        "window_right": draw.choice([None, None, 3]),
        "softcap": draw.choice([None, None, 5.0]),
        "dlse": draw.random() < 0.5,
        "alibi": draw.random() < 0.3,
    }
    return {**found, "softcap": None} if "fold" in text else found


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("text", [BUFFERED, WGMMA], ids=["mma", "wgmma"])
def test_what_is_drawn_together_is_right_together(text, seed, device):
    config = parse_config(text)
    require_right(device, config, problem_of(config, **drawn_facts(seed, text)))


@pytest.mark.gpu
@pytest.mark.parametrize("text", [MMA, BUFFERED, WGMMA, HEADS_IN_TURN, LOADED, WIDE])
def test_many_drawn_problems_are_right_on_a_gpu(text, device):
    config = parse_config(text)
    for seed in range(40):
        facts = drawn_facts(f"many {text} {seed}", text)
        require_right(device, config, problem_of(config, **facts))


@pytest.mark.parametrize("name", WILD)
@BOTH
def test_wild_boundaries_end_inside_the_tensor(text, name, device, monkeypatch):
    """Between canaries; rows and keys of no sequence have gradients of zero."""
    config = parse_config(text)
    given_boundaries(monkeypatch, *WILD[name])
    problem = problem_of(config, sequences=4, causal=True, heads=1)
    require_right(device, config, problem, name=name)


def test_a_thousand_sequences_of_a_token_or_none_are_right(device):
    config = parse_config(WGMMA)
    many = problem_of(config, sequences=1000, q_len=9, k_len=7, heads=1)
    require_right(device, config, many)


def with_boundaries(problem, ends):
    found = {name: bits.copy() for name, bits in inputs_of(Case("neighbours", problem)).items()}
    found["cu_seqlens_q"] = found["cu_seqlens_k"] = np.array(ends, np.int32).view(np.uint32)
    return found


@pytest.mark.parametrize("text", [MMA, WGMMA, WIDE], ids=["mma", "wgmma", "wide"])
def test_what_is_no_number_stays_in_its_sequence(text, device):
    """NaN in all tensors of one sequence; the others' bits are those of a call without it."""
    config = parse_config(text)
    problem = problem_of(config, sequences=5, causal=True, q_len=300, k_len=300, heads=1)
    plain = with_boundaries(problem, [0, 70, 71, 150, 260, 300])
    spoilt = {name: bits.copy() for name, bits in plain.items()}
    for name in ("q", "k", "v", "do", "o"):
        spoilt[name][:, 150:260] = 0x7FC0
    spoilt["lse"][..., 150:260] = np.float32(np.nan).view(np.uint32)
    before, after = (run_arrays(device, config, problem, bits) for bits in (plain, spoilt))
    clean = np.r_[0:150, 260:300]
    for name in ("dq", "dk", "dv"):
        np.testing.assert_array_equal(before[name][:, clean], after[name][:, clean])
        assert (after[name][:, 150:260] & 0x7FFF > 0x7F80).all()


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
    config = parse_config(text)
    case = Case("mutant", problem_of(config, sequences=3, causal=True))

    def inputs(case):
        return {n: change(bits) if n == table else bits for n, bits in inputs_of(case).items()}

    assert check_case(device, config, case).ok
    monkeypatch.setattr(verdict, "inputs_of", inputs)
    assert not check_case(device, config, case).ok


def test_sequences_that_share_q_tiles_in_scratch_are_noticed(device, monkeypatch):
    """Without numbers of sequences, those of short ones would begin with the same q tile."""
    config = parse_config(WGMMA)
    case = Case("mutant", problem_of(config, sequences=3, heads=1))
    monkeypatch.setattr(
        sm90_plan, "list_launch", lambda *given, numbered, **more: list_launch(*given, **more)
    )
    assert not check_case(device, config, case).ok


@pytest.mark.parametrize("text", [MMA, WGMMA, WIDE], ids=["mma", "wgmma", "wide"])
def test_the_bits_are_the_same_on_every_schedule_and_alone(text):
    """Two orders of ctas and warps, one of them random; and a sequence by itself.

    It has the bits that it has in company: its tiles begin at its own first row and key.
    """
    config = parse_config(text)
    problem = problem_of(config, sequences=3, causal=True, q_len=300, k_len=300, heads=1)
    ends = [0, 30, 230, 300]
    inputs = with_boundaries(problem, ends)
    found = []
    for seed, sm_count in ((None, 1), (2, 7)):
        device = EmulatedDevice(sm_count=sm_count, options=EmulatorOptions(seed=seed))
        found.append(run_arrays(device, config, problem, inputs))
    rows = slice(ends[1], ends[2])
    alone = replace(problem, sequences=1, q_len=200, k_len=200)
    one = {name: bits[:, rows] for name, bits in inputs.items() if bits.ndim == 4}
    one |= {"lse": inputs["lse"][..., rows], "cu_seqlens_q": np.array([0, 200], np.uint32)}
    one["cu_seqlens_k"] = one["cu_seqlens_q"]
    single = run_arrays(EmulatedDevice(), config, alone, one)
    dense = run_arrays(EmulatedDevice(), config, replace(alone, sequences=0), one)
    for name in ("dq", "dk", "dv"):
        np.testing.assert_array_equal(found[0][name], found[1][name])
        np.testing.assert_array_equal(found[0][name][:, rows], single[name])
        np.testing.assert_array_equal(dense[name], single[name])


def test_two_lists_come_first_and_the_grid_is_as_long_as_they_can_be():
    config = parse_config(MMA)
    launches = plan(config, problem_of(config, heads=4, kv_heads=2), sm_count=132)
    names = [launch.config.NAME.removeprefix("sm80_backward_") for launch in launches]
    assert names == ["tile_list", "tile_list", "delta", "dkv", "dq"]
    assert [launch.geometry.grid[0] for launch in launches[3:]] == [
        2 * (411 // 64 + 7 + 2),
        4 * (300 // 64 + 7 + 2),
    ]
    assert len({launch.scratch_bytes for launch in launches}) == 1


def test_on_wgmma_scratch_has_q_tiles_for_every_sequence():
    """Those of number i begin with q_begin / rows + i; and one more belongs to nobody."""
    config = parse_config(HEADS_IN_TURN)
    launches = plan(config, problem_of(config, heads=4, kv_heads=2), sm_count=132)
    names = [launch.config.NAME.removeprefix("sm90_backward_") for launch in launches]
    assert names == ["tile_list", "tile_list", "rows", "tiles", "dq"]
    tiles = 300 // 64 + (7 + 2) + 1
    assert [launch.geometry.grid[0] for launch in launches[2:]] == [
        4 * tiles * 4,  # 16 rows a block
        2 * (411 // 128 + 7 + 2),
        4 * tiles * 2,
    ]
    assert launches[2].scratch.dq_sums == 4 * tiles * 64 * 128 * 4
    assert len({launch.scratch_bytes for launch in launches}) == 1


@pytest.mark.parametrize("text", [WGMMA, HEADS_IN_TURN, WIDE])
def test_the_producer_has_registers_for_sequences(text):
    """24 of them. Of all subsets of the masks, a left edge alone leaves the fewest."""
    needs = Needs(("window_left", "sequences", "ragged_k"))
    kernel = compile_kernel(parse_config(text).tiles, needs, "sm_90a")
    assert kernel.resources.spill_bytes == 0


@pytest.mark.parametrize("d_head", [64, 128, 256])
@pytest.mark.parametrize("deterministic", [True, False])
def test_on_hopper_wgmma_is_chosen(d_head, deterministic):
    problem = replace(GRADIENTS, d_head=d_head, causal=True, deterministic=deterministic)
    chosen = choose(problem, "sm_90a").config
    assert chosen.NAME == "sm90_backward"
    assert chosen.repeats_bits
