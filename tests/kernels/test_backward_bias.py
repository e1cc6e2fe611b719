"""Gradients under a bias of the caller's: kinds, strides, and with the other facts."""

import random
from dataclasses import replace

import numpy as np
import pytest

from flashsmith.base.dtypes import DType, from_bits, to_bits
from flashsmith.base.errors import ArgumentError, Unsupported
from flashsmith.check import verdict
from flashsmith.check.cases import Case, bias_cases, inputs_of
from flashsmith.check.verdict import check_case
from flashsmith.compile.compiler import compile_kernel
from flashsmith.emulator.options import EmulatorOptions
from flashsmith.kernels.arguments import ScoresArg
from flashsmith.kernels.launch import scores_arg
from flashsmith.kernels.parse import parse_config
from flashsmith.kernels.plans import plan
from flashsmith.kernels.sm80_backward import plan as backward_plan
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.needs import Needs
from flashsmith.problem.reference import reference
from flashsmith.runtime.emulated import EmulatedDevice
from flashsmith.runtime.run import run_arrays
from flashsmith.tuner.choose.choice import choose

MMA = "bwd(BF16, 64): dkv_64_64_4+dq_64_64_4"
WGMMA = "hopper_bwd(BF16, 64): ds_2+turns+fold+early_dv+late_fences+sections"
# One for each way in which tiles are walked and steps are cut.
CONFIGS = [
    "bwd(FP16, 64): dkv_128_64_8+dq_128_32_8+dkv_buffer+dq_buffer",
    "bwd(BF16, 128): dkv_64_32_4+dq_64_64_4+dkv_buffer+apart",
    "bwd(FP16, 64): dkv_128_64_4+dq_128_64_4+dkv_buffer+dq_buffer",
]
# Three blocks of keys and more, a ragged tail, an odd number of heads that share one of keys.
DENSE = AttentionProblem(1, 3, 1, 139, 230, 64, operation="backward")
PLACED = {"bool": "packed", "same": "padded", "float32": "transposed"}


def problem_of(config, **facts):
    return replace(DENSE, dtype=config.dtype, d_head=config.d_head, **facts)


def checked(device, text, placement="contiguous", gain=1.0, **facts):
    config = parse_config(text)
    case = Case("bias", problem_of(config, **facts), placement=placement, gain=gain)
    return check_case(device, config, case)


@pytest.mark.parametrize("kind", PLACED)
def test_every_kind_has_gradients(kind, device):
    checked(device, MMA, bias=kind).require_ok(MMA)


@pytest.mark.parametrize("kind", PLACED)
def test_elements_are_read_at_every_stride(kind, device):
    placement = PLACED[kind]
    facts = {"bias": kind, "batch": 2, "q_len": 229 if placement == "packed" else 77}
    checked(device, MMA, placement, k_len=229, **facts).require_ok(MMA)


def drawn_facts(seed):
    """A kind and its strides, lengths, heads, mask, cap and slopes, together."""
    draw = random.Random(seed)
    heads, group = draw.choice([(3, 1), (6, 3), (5, 5)])
    rows, keys = draw.choice([1, 67, 139, 203]), draw.choice([1, 77, 258, 389])
    placement = draw.choice(["contiguous", "padded", "transposed", "packed"])
    return placement, {
        "bias": draw.choice(["bool", "same", "float32"]),
        "bias_keys": "apart" if placement != "contiguous" or draw.random() < 0.3 else "",
        "batch": draw.choice([1, 2]),
        "heads": heads,
        "kv_heads": group,
        "q_len": keys if placement == "packed" else rows,
        "k_len": keys,
        "causal": draw.random() < 0.3,
        "window_left": draw.choice([None, None, 1, 130]),
        "softcap": draw.choice([None, None, 20.0]),
        "alibi": draw.random() < 0.3,
        "dlse": draw.random() < 0.5,
        **gradient_of(draw, placement),
    }


# Which of a bias's gradients have one matrix for all, for the strides of each placement.
SHARED = {"contiguous": "", "padded": "heads", "transposed": "batch", "packed": "heads"}


def gradient_of(draw, placement):
    """Whether the bias has a gradient: also one for every place that it is broadcast to."""
    shared = draw.choice(["", SHARED[placement]])
    return {"dbias": draw.random() < 0.5, "bias_shared": shared}


def with_gradient(facts):
    """The same where the kind of bias has one."""
    return facts | {"dbias": facts["dbias"] and facts["bias"] != "bool"}


@pytest.mark.parametrize("text", CONFIGS)
def test_what_is_drawn_together_is_right_together(text, device):
    placement, facts = drawn_facts(f"bias {text}")
    facts = with_gradient(facts)
    gain = random.Random(text).choice([1.0, 8.0])
    checked(device, text, placement, gain, **facts).require_ok(f"{text} {facts}")


@pytest.mark.gpu
@pytest.mark.parametrize("text", [MMA, *CONFIGS])
def test_much_that_is_drawn_is_right_on_a_gpu(text, device):
    config = parse_config(text)
    for seed in range(30):
        placement, facts = drawn_facts(f"many {text} {seed}")
        facts = with_gradient(facts)
        checked(device, text, placement, 2.0, **facts).require_ok(f"{text} {facts}")
    for case in bias_cases(config):
        check_case(device, config, case).require_ok(text)


GRADIENTS = {
    "of its own": ("contiguous", {"bias": "float32"}),
    "of all heads": ("padded", {"bias": "same", "bias_shared": "heads", "causal": True}),
    "of all sequences": ("transposed", {"bias": "float32", "bias_shared": "batch", "softcap": 3.0}),
    "of all": (
        "contiguous",
        {"bias": "same", "bias_shared": "both", "batch": 1, "heads": 1, "window_left": 40},
    ),
    "of every place": ("packed", {"bias": "same", "q_len": 131, "k_len": 131, "alibi": True}),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_a_bias_has_a_gradient(name, device):
    placement, facts = GRADIENTS[name]
    facts = {"batch": 2, "q_len": 77, "k_len": 197, **facts}
    checked(device, MMA, placement, dbias=True, **facts).require_ok(name)


@pytest.mark.parametrize("d_head", [128, 256])
def test_wide_heads_have_a_gradient_of_the_bias(d_head, device):
    text = f"bwd(FP16, {d_head}): dkv_64_32_4+dq_64_32_4+apart"
    facts = {"batch": 2, "q_len": 70, "k_len": 101, "bias": "same", "bias_shared": "batch"}
    checked(device, text, "transposed", dbias=True, **facts).require_ok(text)


def test_what_shares_a_bias_is_summed_in_one_order(device):
    """The same bits whatever runs first: blocks in another order, with other schedules."""
    problem = problem_of(parse_config(MMA), bias="same", batch=2, bias_shared="batch", dbias=True)
    problem = replace(problem, q_len=70, k_len=66)
    made = dict(inputs_of(Case("order", problem, placement="transposed")))
    is_emulated = isinstance(device, EmulatedDevice)  # of which another has other schedules
    other = EmulatedDevice(options=EmulatorOptions(seed=5)) if is_emulated else device
    found = [run_arrays(one, parse_config(MMA), problem, made)["dbias"] for one in (device, other)]
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize("fact", ["bias_sequences", "bias_heads"])
def test_a_gradient_that_leaves_one_out_is_noticed(fact, device, monkeypatch):
    facts = {"bias": "same", "batch": 2, "q_len": 70, "k_len": 67, "dbias": True}
    shared = {"bias_sequences": "batch", "bias_heads": "heads"}[fact]
    placement = "transposed" if shared == "batch" else "padded"
    facts["bias_shared"] = shared
    assert checked(device, MMA, placement, **facts).ok
    made = backward_plan.BackwardArguments
    monkeypatch.setattr(
        backward_plan, "BackwardArguments", lambda **given: made(**(given | {fact: 2}))
    )
    assert not checked(device, MMA, placement, **facts).ok


def test_only_what_is_added_to_scores_has_a_gradient():
    for bias in ("", "bool"):
        with pytest.raises(ArgumentError, match="only numbers that are added to scores"):
            replace(DENSE, bias=bias, dbias=True)
    with pytest.raises(ArgumentError, match="dbias is True and operation is 'forward'"):
        replace(DENSE, operation="forward", bias="same", dbias=True)


FAULTS = {
    "not added": np.zeros_like,
    "another head's": lambda bias: np.roll(bias, 1, axis=1),
    "a row off by one": lambda bias: np.roll(bias, 1, axis=2),
    "a key off by one": lambda bias: np.roll(bias, 1, axis=3),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_bias_that_is_not_the_given_one_is_noticed(fault, device, monkeypatch):
    def inputs(case):
        made = inputs_of(case)
        return {**made, "bias": FAULTS[fault](made["bias"])}

    monkeypatch.setattr(verdict, "inputs_of", inputs)
    assert not checked(device, MMA, bias="same", q_len=77, k_len=130).ok


@pytest.mark.parametrize("name", ["batch_stride", "seq_stride", "head_stride", "key_stride"])
def test_a_stride_that_is_ignored_is_noticed(name, device, monkeypatch):
    def ignoring(launch, call):
        given = scores_arg(launch, call)
        kept = {n: getattr(given, n) for n in ScoresArg.__dataclass_fields__}
        return ScoresArg(**{**kept, name: 1 if name == "key_stride" else 0})

    facts = {"bias": "same", "batch": 2, "q_len": 77, "k_len": 131}
    placement = "padded" if name in ("batch_stride", "seq_stride") else "transposed"
    assert checked(device, MMA, placement, **facts).ok
    monkeypatch.setattr(backward_plan, "scores_arg", ignoring)
    assert not checked(device, MMA, placement, **facts).ok


@pytest.mark.parametrize("hides", [-np.inf, -3e38])
def test_rows_that_see_nothing_have_no_gradient_and_give_none(hides, device):
    """Whether a key is hidden by -inf or by the most negative number of a type."""
    config = parse_config(MMA)
    problem = problem_of(config, bias="same", dlse=True)
    numbers = np.zeros((1, 3, 139, 230), np.float32)
    numbers[:, :, 3:6] = hides
    numbers[:, :, :, 70:140] = hides  # keys that no row sees: more than a block
    made = inputs_of(Case("unseen", problem)) | {"bias": to_bits(numbers, DType.BF16)}
    o, lse = (array.copy() for array in (made["o"], made["lse"]))
    o[:, 3:6], lse.view(np.float32)[:, :, 3:6] = 0, -np.inf
    found = run_arrays(device, config, problem, made | {"o": o, "lse": lse})
    dq, dk, dv = (from_bits(found[name], config.dtype) for name in ("dq", "dk", "dv"))
    assert not dq[:, 3:6].any()
    assert not dk[:, 70:140].any()
    assert not dv[:, 70:140].any()
    assert all(np.isfinite(gradient).all() for gradient in (dq, dk, dv))
    assert dq[:, 6:].any()
    assert dk[:, :70].any()


def test_what_a_bool_hides_from_a_warp_is_not_multiplied(device):
    """NaN in what must not be looked at: who multiplies it gets NaN, also where a weight is 0."""
    config = parse_config(MMA)
    problem = problem_of(config, bias="bool")
    seen = np.ones((1, 3, 139, 230), np.uint8)
    seen[:, :, :, 64:128] = 0  # keys that no row sees
    seen[:, :, 64:128, 128:192] = 0  # rows that do not see these
    made = inputs_of(Case("unseen", problem)) | {"bias": seen}
    expected = run_arrays(device, config, problem, made)
    nan = to_bits(np.float32([np.nan]), DType.BF16)[0]
    spoiled = {name: bits.copy() for name, bits in made.items()}
    spoiled["v"][:, 64:128], spoiled["k"][:, 64:128] = nan, nan
    found = run_arrays(device, config, problem, spoiled)
    for name in ("dq", "dk", "dv"):
        np.testing.assert_array_equal(found[name], expected[name])
    spoiled = {name: bits.copy() for name, bits in made.items()}
    spoiled["do"][:, 64:128], spoiled["q"][:, 64:128] = nan, nan
    found = run_arrays(device, config, problem, spoiled)
    for name in ("dk", "dv"):
        np.testing.assert_array_equal(found[name][:, 64:192], expected[name][:, 64:192])


def test_the_truth_is_torchs():
    torch = pytest.importorskip("torch")
    forward = AttentionProblem(2, 4, 2, 9, 13, 16, DType.FP16, bias="float32", layout="bhsd")
    rng = np.random.default_rng(7)
    q, do = (rng.standard_normal((2, 4, 9, 16)) for _ in range(2))
    k, v = (rng.standard_normal((2, 2, 13, 16)) for _ in range(2))
    bias = rng.standard_normal((2, 4, 9, 13))
    bias[rng.random(bias.shape) < 0.3] = -np.inf
    bias[:, :, 4] = -np.inf
    problem = replace(forward, operation="backward", dbias=True)
    made = {"q": q, "k": k, "v": v, "bias": bias, "do": do}
    made |= {"o": np.zeros_like(q), "lse": np.zeros((2, 4, 9))}  # not looked at
    found = reference(problem, made)
    given = [torch.from_numpy(x).requires_grad_() for x in (q, k, v, bias)]
    out = torch.nn.functional.scaled_dot_product_attention(
        *given[:3], attn_mask=given[3], enable_gqa=True
    ).nan_to_num(0.0)
    seen = torch.ones(2, 4, 9, 1, dtype=torch.bool)
    seen[:, :, 4] = False
    wanted = torch.autograd.grad(out, given, torch.from_numpy(do) * seen)
    for name, gradient in zip(("dq", "dk", "dv", "dbias"), wanted, strict=True):
        np.testing.assert_allclose(found[name], gradient.nan_to_num(0.0).numpy(), atol=1e-12)
    assert not found["dq"][:, :, 4].any()


def test_what_is_chosen_computes_it_and_spills_next_to_nothing():
    for n, d_head in enumerate((64, 128, 256)):
        for m, kind in enumerate(PLACED):
            if (n + m) % 3 == 0 and d_head != 128:  # where registers are shortest, all
                continue
            problem = replace(DENSE, d_head=d_head, bias=kind)
            chosen = choose(problem, "sm_90a").config
            assert chosen.NAME == "sm80_backward"
            needs = Needs((f"bias_{kind}", "ragged_q", "ragged_k"))
            parts = [*chosen.kernels()[1:], *([] if kind == "bool" else [chosen.of_bias])]
            kernels = [compile_kernel(part, needs, "sm_90a") for part in parts]
            # Two words are kept outside of the loops.
            assert all(kernel.resources.spill_bytes <= 8 for kernel in kernels), (d_head, kind)


def test_kernels_on_wgmma_leave_it_to_those_that_compute_it():
    with pytest.raises(Unsupported, match="do not compute bias"):
        plan(parse_config(WGMMA), replace(DENSE, bias="bool"), sm_count=132)
