"""Windows, slopes and caps in both backward families; each alone and drawn together."""

import random
from dataclasses import replace

import numpy as np
import pytest

from flashsmith.base.dtypes import DType, to_bits
from flashsmith.base.errors import Unsupported
from flashsmith.check import verdict
from flashsmith.check.cases import Case, inputs_of
from flashsmith.check.verdict import check_case
from flashsmith.compile.compiler import compile_kernel
from flashsmith.kernels.parse import parse_config
from flashsmith.kernels.plans import kernels_of, plan
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.mask import Mask
from flashsmith.problem.needs import Needs
from flashsmith.runtime.run import run_arrays
from flashsmith.tuner.choose.choice import choose

ALL = "turns+fold+early_dv+late_fences"
MMA = "bwd(BF16, 64): dkv_64_64_4+dq_64_64_4"
WGMMA = f"hopper_bwd(BF16, 64): ds_2+{ALL}+sections"
WIDE = "hopper_bwd(BF16, 256): ds_2+dq_red+sections"
# One for each way in which tiles are walked, masked and added.
CONFIGS = [
    MMA,
    "bwd(FP16, 64): dkv_128_64_8+dq_128_32_8+dkv_buffer+dq_buffer",
    "bwd(BF16, 128): dkv_64_32_4+dq_64_64_4+dkv_buffer+apart",
    WGMMA,
    f"hopper_bwd(FP16, 64): ds_2+{ALL}",
    f"hopper_bwd(BF16, 128): ds_3+{ALL}",
    f"hopper_bwd(BF16, 128): ds_3+{ALL}+unordered",
    f"hopper_bwd(FP16, 128): ds_3+{ALL}+dq_red+unordered",
    "hopper_bwd(BF16, 128): ds_2+turns+early_dv",
]
CAPPED = [  # on wgmma: as the rule has them
    "hopper_bwd(BF16, 128): ds_3+turns+early_dv+late_fences+sections",
    WIDE,
]
DENSE = AttentionProblem(1, 2, 1, 203, 419, 64, operation="backward")
ALONE = [
    {"window_left": 70, "causal": True},
    {"window_left": 70, "window_right": 33},
    {"window_left": 300},
    {"window_right": 20},
    {"window_left": 0, "window_right": 0},
    # Rows behind the last key that a window reaches, and keys before the first row's.
    {"q_len": 300, "k_len": 77, "window_left": 20, "window_right": 5, "diagonal": 0},
    {"q_len": 70, "k_len": 500, "window_left": 20, "causal": True},
    # Of another sequence and head each; rows stand before the first key.
    {"alibi": True, "batch": 2, "heads": 4, "kv_heads": 2, "q_len": 130, "k_len": 150},
    {"alibi": True, "causal": True, "diagonal": -30, "q_len": 130, "k_len": 150},
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


def test_wide_heads_have_both_edges_and_slopes(device):
    config = parse_config(WIDE)
    facts = {"window_left": 40, "window_right": 9, "alibi": True, "heads": 3, "q_len": 70}
    require_right(device, config, problem_of(config, **facts, k_len=140))


@pytest.mark.parametrize("text", [*CONFIGS[:3], *CAPPED])
@pytest.mark.parametrize("softcap", [1.5, 30.0])
def test_a_cap_bends_the_gradient_too(text, softcap, device):
    config = parse_config(text)
    require_right(device, config, problem_of(config, softcap=softcap, q_len=70, k_len=131))


@pytest.mark.parametrize("text", [*CONFIGS[:3], *CAPPED, "hopper_bwd(BF16, 256): ds_2+two_passes"])
@pytest.mark.parametrize("softcap", [0.5, 1.0])
@pytest.mark.parametrize("gain", [3.0, 6.0])
def test_scores_at_their_cap_have_the_gradient_that_is_left(text, gain, softcap, device):
    """Where tanh is 1 to all its digits its slope is small, and all there is."""
    config = parse_config(text)
    problem = problem_of(config, softcap=softcap, heads=3, kv_heads=3, q_len=1, k_len=77)
    require_right(device, config, problem, gain=gain)


@pytest.mark.parametrize("text", CAPPED)
def test_a_cap_on_wgmma_is_right_with_masks_slopes_and_sequences(text, device):
    config = parse_config(text)
    facts = {"softcap": 2.0, "causal": True, "alibi": True, "heads": 3, "q_len": 150, "k_len": 211}
    require_right(device, config, problem_of(config, **facts, sequences=4))


@pytest.mark.parametrize("d_head", [72, 128, 256])
def test_for_wide_heads_a_cap_is_computed_on_wgmma(d_head):
    facts = ("causal", "softcap", "window_left", "alibi", "ragged_k")
    for dtype in (DType.BF16, DType.FP16):
        problem = replace(DENSE, d_head=d_head, softcap=30.0, dtype=dtype)
        packed = replace(problem, batch=1, sequences=3)
        for own in (problem, packed):
            chosen = choose(own, "sm_90a").config
            assert (chosen.NAME, chosen.fold) == ("sm90_backward", False)
            # In turn: packed and dense in each element type, and of each width.
            if (own is packed) == ((dtype is DType.FP16) == (d_head == 256)):
                needs = Needs((*facts, "sequences") if own is packed else facts)
                assert compile_kernel(chosen.tiles, needs, "sm_90a").resources.spill_bytes == 0


def test_a_cap_of_narrow_heads_is_left_to_the_kernels_that_compute_it():
    """P beside P times the slopes, of 128 rows, has no room in registers."""
    capped = problem_of(parse_config(WGMMA), softcap=30.0)
    with pytest.raises(Unsupported, match=r"puts LSE into products \(fold\)"):
        plan(parse_config(WGMMA), capped, sm_count=132)
    chosen = choose(capped, "sm_90a").config
    assert chosen.NAME == "sm80_backward"
    needs = Needs(("causal", "softcap", "window_left", "ragged_q", "ragged_k"))
    kernels = [compile_kernel(part, needs, "sm_90a") for part in chosen.kernels()[1:]]
    assert [kernel.resources.spill_bytes for kernel in kernels] == [0, 0]
    assert choose(replace(capped, softcap=None), "sm_90a").config.NAME == "sm90_backward"


def takes_caps(config):
    return not getattr(config, "fold", False)


def drawn_facts(seed, *, softcap=False):
    """Lengths, heads, mask and cap, together."""
    draw = random.Random(seed)
    heads, group = draw.choice([(2, 1), (3, 3), (4, 2)])
    return {
        "batch": draw.choice([1, 2]),
        "heads": heads,
        "kv_heads": group,
        "q_len": draw.choice([1, 67, 130, 203]),
        "k_len": draw.choice([1, 77, 257, 300]),
        "causal": draw.random() < 0.5,
        "diagonal": draw.choice([None, None, 0, 31, -40]),
        "window_left": draw.choice([0, 1, 63, 64, 130, 500]),
        "window_right": draw.choice([None, 0, 2, 64, 300]),
        "dlse": draw.random() < 0.5,
        "softcap": draw.choice([None, 1.0, 20.0]) if softcap else None,
        "alibi": draw.random() < 0.3,
    }


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("text", CONFIGS)
def test_facts_that_are_drawn_together_are_right_together(text, seed, device):
    config = parse_config(text)
    facts = drawn_facts(f"{text} {seed}", softcap=takes_caps(config))
    problem = problem_of(config, **facts)
    require_right(device, config, problem, gain=random.Random(seed).choice([1.0, 8.0]))


@pytest.mark.gpu
@pytest.mark.parametrize("text", [*CONFIGS, *CAPPED])
def test_many_drawn_facts_are_right_on_a_gpu(text, device):
    config = parse_config(text)
    for seed in range(40):
        facts = drawn_facts(f"many {text} {seed}", softcap=takes_caps(config))
        problem = problem_of(config, **facts)
        require_right(device, config, problem)


def is_right(device, text, **facts):
    config = parse_config(text)
    return check_case(device, config, Case("mutant", problem_of(config, **facts))).ok


@pytest.mark.parametrize("off", [-1, 1])
@pytest.mark.parametrize("text", [MMA, WGMMA], ids=["mma", "wgmma"])
def test_an_edge_that_is_off_by_one_is_noticed(text, off, device, monkeypatch):
    facts = {"window_left": 40, "window_right": 3, "k_len": 230}
    assert is_right(device, text, **facts)
    for name in ("left_diagonal", "diagonal"):
        with monkeypatch.context() as patch:
            right = getattr(Mask, name).fget
            patch.setattr(Mask, name, property(lambda mask, right=right: right(mask) + off))
            assert not is_right(device, text, **facts), name


def of_another_head(case):
    """The slopes of the wrong heads, and everything else as it was."""
    return {
        name: np.roll(bits, 1, axis=-1) if name == "alibi_slopes" else bits
        for name, bits in inputs_of(case).items()
    }


@pytest.mark.parametrize("text", [MMA, WGMMA], ids=["mma", "wgmma"])
def test_the_slope_of_another_head_is_noticed(text, device, monkeypatch):
    facts = {"alibi": True, "batch": 2, "heads": 4, "kv_heads": 2, "q_len": 130, "k_len": 150}
    monkeypatch.setattr(verdict, "inputs_of", of_another_head)
    assert not is_right(device, text, **facts)


@pytest.mark.parametrize("text", [MMA, WGMMA], ids=["mma", "wgmma"])
def test_tiles_outside_a_window_are_never_loaded(text, device):
    """NaN in what must not be looked at: who multiplies it gets NaN, also where a weight is 0."""
    config = parse_config(text)
    problem = problem_of(config, q_len=512, k_len=512, window_left=60, causal=True)
    plain = inputs_of(Case("hidden", problem))
    expected = run_arrays(device, config, problem, plain)
    nan = to_bits(np.float32([np.nan]), DType.BF16)[0]
    spoiled = {name: bits.copy() for name, bits in plain.items()}
    spoiled["do"][:, 256:] = nan  # rows that see no key before 196
    found = run_arrays(device, config, problem, spoiled)
    for name in ("dk", "dv"):
        np.testing.assert_array_equal(found[name][:, :128], expected[name][:, :128])
    np.testing.assert_array_equal(found["dq"][:, :256], expected["dq"][:, :256])
    spoiled = {name: bits.copy() for name, bits in plain.items()}
    spoiled["v"][:, :128] = nan  # keys that no row from 188 on sees
    found = run_arrays(device, config, problem, spoiled)
    np.testing.assert_array_equal(found["dq"][:, 256:], expected["dq"][:, 256:])


def test_a_mask_that_hides_nothing_needs_no_code():
    for text in (MMA, WGMMA):
        config = parse_config(text)
        wide = problem_of(config, window_left=1000, window_right=1000)
        assert all("window_left" not in needs for _, needs in kernels_of(config, wide))
        narrow = problem_of(config, window_left=100)
        assert any("window_left" in needs for _, needs in kernels_of(config, narrow))
