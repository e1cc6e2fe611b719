"""Windows, caps, sinks and slopes in both forward families, each alone."""

import random
from dataclasses import replace

import numpy as np
import pytest

from flashsmith.base.dtypes import from_bits
from flashsmith.base.errors import Unsupported
from flashsmith.check import verdict
from flashsmith.check.cases import Case, inputs_of
from flashsmith.check.verdict import check_case
from flashsmith.emulator.options import EmulatorOptions
from flashsmith.kernels.parse import parse_config
from flashsmith.kernels.plans import needs_of, plan
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.mask import Mask
from flashsmith.runtime.emulated import EmulatedDevice
from flashsmith.runtime.run import run_arrays

LOOP = "overlap+early_rescale+tiles_DYNAMIC+sections"
MMA = "(BF16, 64, 64, 64, 4): async+eager+swizzled+load_0_2_2_tiles+opt_softmax"
WGMMA = f"hopper(BF16, 64, 2, 128): kv_2+q_4+{LOOP}+stats_SUM+lazy_8+o_smem+regs_232_40"
PINGPONG = (
    f"hopper(FP16, 64, 2, 128): kv_3+q_4+{LOOP}+stats_SUM+lazy_8+halves+pingpong+l_mma+o_smem"
    "+late_draw+regs_232_40"
)
VOTING = (
    f"hopper(BF16, 64, 2, 128): kv_2+q_4+{LOOP}+stats_VOTE+lazy_8+halves+early_tests+split+o_smem"
    "+late_store+regs_232_40"
)
DENSE = AttentionProblem(1, 3, 1, 203, 419, 64, lse=True)
ALONE = [
    {"window_left": 70, "causal": True},
    {"window_left": 70, "window_right": 33},
    {"window_left": 300},
    {"window_right": 20},
    {"window_left": 0, "window_right": 0},
    {"softcap": 2.0},
    {"softcap": 50.0, "causal": True},
    {"sinks": True},
    {"sinks": True, "lse": False},
    {"alibi": True},
    {"alibi": True, "causal": True},
    # Rows behind the last key that a window reaches, and rows before the first.
    {"q_len": 500, "k_len": 77, "window_left": 20, "window_right": 5, "diagonal": 0},
    {"q_len": 300, "k_len": 77, "window_left": 20, "causal": True, "sinks": True},
]


def problem_of(config, **facts):
    return replace(DENSE, dtype=config.dtype, d_head=config.d_head, **facts)


def require_right(device, config, problem, gain=3.0):
    name = f"{config.short_form()} on {problem}"
    check_case(device, config, Case("masks and scores", problem, gain=gain)).require_ok(name)


@pytest.mark.parametrize(
    "facts", ALONE, ids=lambda facts: " ".join(f"{k}={v}" for k, v in facts.items())
)
@pytest.mark.parametrize("text", [MMA, WGMMA], ids=["mma", "wgmma"])
def test_each_fact_is_computed_by_both_families(text, facts, device):
    config = parse_config(text)
    require_right(device, config, problem_of(config, **facts))


@pytest.mark.parametrize(
    "facts",
    [
        {"q_len": 300, "k_len": 700, "window_left": 256, "causal": True},
        {"q_len": 256, "k_len": 512, "window_left": 192, "window_right": 64, "lse": False},
    ],
    ids=["causal", "both sides"],
)
def test_half_a_block_is_taken_at_either_edge(facts, device):
    config = parse_config(VOTING)
    require_right(device, config, problem_of(config, **facts))


def with_inputs(monkeypatch, change):
    """Gives kernels other inputs than those that the truth is computed from."""

    def inputs(case):
        return {name: change(name, bits) for name, bits in inputs_of(case).items()}

    monkeypatch.setattr(verdict, "inputs_of", inputs)


def is_right(device, text, **facts):
    config = parse_config(text)
    return check_case(device, config, Case("mutant", problem_of(config, **facts))).ok


@pytest.mark.parametrize("off", [-1, 1])
@pytest.mark.parametrize("text", [MMA, WGMMA], ids=["mma", "wgmma"])
def test_an_edge_that_is_off_by_one_is_noticed(text, off, device, monkeypatch):
    facts = {"window_left": 40, "window_right": 3}
    assert is_right(device, text, **facts)
    for name in ("left_diagonal", "diagonal"):
        with monkeypatch.context() as patch:
            right = getattr(Mask, name).fget
            patch.setattr(Mask, name, property(lambda mask, right=right: right(mask) + off))
            assert not is_right(device, text, **facts), name


@pytest.mark.parametrize("text", [MMA, WGMMA], ids=["mma", "wgmma"])
def test_a_sink_that_counts_twice_is_noticed(text, device, monkeypatch):
    def twice(name, bits):
        if name != "sinks":
            return bits
        return (bits.view(np.float32) + np.float32(np.log(2))).view(np.uint32)

    with_inputs(monkeypatch, twice)
    assert not is_right(device, text, sinks=True)


@pytest.mark.parametrize("text", [MMA, WGMMA], ids=["mma", "wgmma"])
def test_a_sink_that_is_no_number_reaches_every_row_and_minus_infinity_none(text, device):
    """Also the rows that see no key."""
    config = parse_config(text)
    problem = problem_of(config, q_len=130, k_len=70, causal=True, sinks=True)
    bits = dict(inputs_of(Case("odd sinks", problem)))
    bits["sinks"] = np.array([np.nan, -np.inf, 0.0], np.float32).view(np.uint32)
    found = run_arrays(device, config, problem, bits)
    o, lse = from_bits(found["o"], config.dtype), found["lse"].view(np.float32)
    assert np.isnan(o[:, :, 0]).all()
    assert np.isnan(lse[:, 0]).all()
    assert np.isfinite(o[:, :, 1:]).all()
    assert np.isneginf(lse[:, 1, :60]).all()


@pytest.mark.parametrize("text", [MMA, WGMMA], ids=["mma", "wgmma"])
def test_slopes_of_another_head_are_noticed(text, device, monkeypatch):
    def of_the_next_head(name, bits):
        return np.roll(bits, 1, axis=-1) if name in ("alibi_slopes", "sinks") else bits

    with_inputs(monkeypatch, of_the_next_head)
    assert not is_right(device, text, alibi=True, k_len=40)
    assert not is_right(device, text, sinks=True, k_len=40)


def test_with_slopes_a_tile_begins_with_the_keys_nearest_to_its_rows():
    """From the last key on, every block would outgrow the one before and be exponentiated twice."""
    config = parse_config(WGMMA)
    device = EmulatedDevice(sm_count=1, options=EmulatorOptions(counters=True))
    problem = problem_of(config, alibi=True, q_len=128, k_len=512, diagonal=0, lse=False)
    bits = dict(inputs_of(Case("steep", problem)))
    bits["alibi_slopes"] = np.full((1, 3), 0.5, np.float32).view(np.uint32)
    run_arrays(device, config, problem, bits)
    warps, lanes_share = 8, 64
    blocks = problem.heads * problem.k_len // config.B_c * warps
    exponentials = device.report().counters.instructions["special function"]
    # The first block of a tile is tried and done again; beside them are a few for sums and factors.
    assert blocks * lanes_share <= exponentials < 1.4 * blocks * lanes_share


@pytest.mark.parametrize("seed", range(4))
def test_tiles_that_begin_near_their_rows_are_right_wherever_those_stand(seed, device):
    draw = random.Random(f"near {seed}")
    config = parse_config([WGMMA, PINGPONG][seed % 2])
    q_len, k_len = draw.choice([64, 129, 300]), draw.choice([200, 384, 419])
    diagonal = draw.choice([None, 0, 40, -300, 5000])
    problem = problem_of(config, alibi=True, q_len=q_len, k_len=k_len, diagonal=diagonal)
    check_case(device, config, Case("near", problem, gain=8.0)).require_ok(f"{problem}")


def test_kv_blocks_outside_a_window_are_never_loaded(device):
    """NaN in keys that no row sees: who multiplies them gets NaN, also where the weight is 0."""
    for text in (MMA, WGMMA):
        config = parse_config(text)
        problem = problem_of(config, q_len=64, k_len=640, window_left=60, causal=True)
        bits = dict(inputs_of(Case("hidden", problem)))
        nan = np.array(np.nan, np.float32).view(np.uint32) >> 16
        bits["v"] = bits["v"].copy()
        bits["v"][:, : 640 - 64 - 60 - 127] = np.uint16(nan)
        found = run_arrays(device, config, problem, bits)
        assert not np.isnan(found["lse"].view(np.float32)).any()
        plain = run_arrays(device, config, problem, inputs_of(Case("hidden", problem)))
        np.testing.assert_array_equal(found["o"], plain["o"])


def test_a_mask_that_hides_nothing_needs_no_code():
    config = parse_config(MMA)
    wide = needs_of(config, problem_of(config, window_left=1000, window_right=1000))
    assert "window_left" not in wide
    assert "causal" not in wide
    assert "window_left" in needs_of(config, problem_of(config, window_left=100))


def test_what_no_kernel_computes_is_refused_by_name():
    config = parse_config("bwd(BF16, 64): dkv_64_64_4+dq_64_64_4")
    problem = replace(DENSE, lse=False, operation="backward", k_lengths=True)
    with pytest.raises(Unsupported, match="do not compute k_lengths"):
        plan(config, problem, sm_count=132)
