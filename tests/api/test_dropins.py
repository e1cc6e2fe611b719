"""The drop-ins mean what their ecosystems mean, on arrays of any library."""

import inspect
from dataclasses import replace

import numpy as np
import pytest
import torch
from placed_arrays import Placement, placed_inputs, require_right

import flashsmith
from flashsmith import flash_attn_func, scaled_dot_product_attention
from flashsmith.base.dtypes import DType
from flashsmith.base.errors import ArgumentError
from flashsmith.check.cases import Case
from flashsmith.problem.attention import AttentionProblem

pytestmark = pytest.mark.filterwarnings("ignore::flashsmith.FlashsmithWarning")
PROBLEM = AttentionProblem(2, 3, 1, 70, 203, 64, DType.FP16, causal=True)
BOTTOM_RIGHT = Case("bottom right", PROBLEM)
TOP_LEFT = Case("top left", AttentionProblem(2, 3, 1, 70, 203, 64, DType.FP16, True, 0))


def tensors_of(case, layout, device="cpu"):
    placed = placed_inputs(case, Placement(), layout)
    return [item.torch(case.problem.dtype, device) for item in placed]


def arrays_of(case, layout):
    return [item.numpy(case.problem.dtype) for item in placed_inputs(case, Placement(), layout)]


def on_emulator(monkeypatch):
    monkeypatch.setenv("FLASHSMITH_DEVICE", "emulator")


def test_the_signatures_are_those_of_the_originals():
    sdpa = list(inspect.signature(scaled_dot_product_attention).parameters)
    assert sdpa == [
        *("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
    ]
    assert list(inspect.signature(flash_attn_func).parameters) == [
        *("q", "k", "v", "dropout_p", "softmax_scale", "causal", "window_size", "softcap"),
        *("alibi_slopes", "deterministic", "return_attn_probs"),
    ]


def test_flash_attn_func_aligns_causal_bottom_right(monkeypatch):
    on_emulator(monkeypatch)
    out = flash_attn_func(*arrays_of(BOTTOM_RIGHT, "bshd"), causal=True)
    require_right(BOTTOM_RIGHT, "bshd", out)


def test_sdpa_aligns_causal_top_left(monkeypatch):
    on_emulator(monkeypatch)
    arrays = arrays_of(TOP_LEFT, "bhsd")
    out = scaled_dot_product_attention(*arrays, is_causal=True, enable_gqa=True)
    require_right(TOP_LEFT, "bhsd", out)


def test_flash_attn_func_returns_the_lse_with_the_probabilities_nobody_has(monkeypatch):
    on_emulator(monkeypatch)
    arrays = arrays_of(BOTTOM_RIGHT, "bshd")
    out, lse, probabilities = flash_attn_func(*arrays, causal=True, return_attn_probs=True)
    require_right(BOTTOM_RIGHT, "bshd", out, lse)
    assert probabilities is None


def test_the_scale_of_each_is_its_own_argument(monkeypatch):
    on_emulator(monkeypatch)
    case = Case("scaled", AttentionProblem(1, 3, 3, 17, 203, 64, DType.FP16, scale=0.3))
    out = flash_attn_func(*arrays_of(case, "bshd"), softmax_scale=0.3)
    require_right(case, "bshd", out)
    out = scaled_dot_product_attention(*arrays_of(case, "bhsd"), scale=0.3)
    require_right(case, "bhsd", out)


@pytest.mark.parametrize("neutral", [{"window_size": (-1, 0)}, {"deterministic": True}, {}])
def test_neutral_arguments_of_flash_attn_func_change_nothing(neutral):
    q, k, v = tensors_of(BOTTOM_RIGHT, "bshd")
    out = flash_attn_func(q, k, v, causal=True, **neutral)
    assert torch.equal(out, flash_attn_func(q, k, v, 0.0, None, True))


@pytest.mark.parametrize("is_causal", [False, True])
def test_sdpa_is_torchs_for_cpu_tensors(is_causal):
    problem = replace(TOP_LEFT.problem, causal=is_causal, diagonal=0 if is_causal else None)
    case = Case("torch", problem)
    tensors = tensors_of(case, "bhsd")
    ours = scaled_dot_product_attention(*tensors, is_causal=is_causal, enable_gqa=True)
    theirs = torch.nn.functional.scaled_dot_product_attention(
        *tensors, is_causal=is_causal, enable_gqa=True
    )
    require_right(case, "bhsd", ours)
    require_right(case, "bhsd", theirs)


def test_sdpa_takes_three_dimensions_as_torch_does():
    case = Case("three dimensions", AttentionProblem(1, 3, 3, 70, 70, 64, DType.FP16))
    q, k, v = (tensor[0] for tensor in tensors_of(case, "bhsd"))
    ours = scaled_dot_product_attention(q, k, v)
    theirs = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    assert ours.shape == theirs.shape == q.shape
    require_right(case, "bhsd", ours[None])
    require_right(case, "bhsd", theirs[None])


@pytest.mark.gpu
@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
def test_both_are_right_on_a_gpu(layout):
    case = BOTTOM_RIGHT if layout == "bshd" else TOP_LEFT
    tensors = tensors_of(case, layout, "cuda")
    if layout == "bshd":
        out = flash_attn_func(*tensors, causal=True)
    else:
        out = scaled_dot_product_attention(*tensors, is_causal=True, enable_gqa=True)
    require_right(case, layout, np.asarray(out.cpu()))


def test_stacked_tensors_are_views_of_q_k_and_v():
    random = np.random.default_rng(3)
    qkv = random.standard_normal((2, 70, 3, 3, 64)).astype(np.float16)
    q, k, v = (qkv[:, :, n] for n in range(3))
    plain = flash_attn_func(q, k, v, 0.0, None, True)
    np.testing.assert_array_equal(flashsmith.flash_attn_qkvpacked_func(qkv, 0.0, None, True), plain)
    np.testing.assert_array_equal(
        flashsmith.flash_attn_kvpacked_func(q, qkv[:, :, 1:], causal=True), plain
    )
    rows = qkv.reshape(140, 3, 3, 64)
    boundaries = np.array([0, 41, 140], np.int32)
    packed = flashsmith.flash_attn_varlen_func(
        *(rows[:, n] for n in range(3)), boundaries, boundaries, 99, 99, causal=True
    )
    np.testing.assert_array_equal(
        flashsmith.flash_attn_varlen_qkvpacked_func(rows, boundaries, 99, causal=True), packed
    )
    kv = rows[:, 1:]
    np.testing.assert_array_equal(
        flashsmith.flash_attn_varlen_kvpacked_func(
            rows[:, 0], kv, boundaries, boundaries, 99, 99, causal=True
        ),
        packed,
    )
    with pytest.raises(ArgumentError, match=r"kv has shape .* it must be \(rows, 2, heads, d_head"):
        flashsmith.flash_attn_varlen_kvpacked_func(rows[:, 0], rows, boundaries, boundaries, 9, 9)
