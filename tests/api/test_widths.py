"""Values of another width than keys, as DeepSeek's prefill has: read as they are, or padded."""

import numpy as np
import pytest
import torch
from nearness import require_near

from flashsmith import flash_attention, flash_attn_varlen_func, scaled_dot_product_attention
from flashsmith.base.dtypes import DType
from flashsmith.base.errors import ArgumentError, Unsupported

pytestmark = pytest.mark.filterwarnings("ignore::flashsmith.FlashsmithWarning")


def drawn(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float16)


def attended(q, k, v):
    """torch's attention, causal, of (batch, sequence, heads, width)."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    return out.transpose(1, 2)


def require_right(out, *arrays):
    same = [torch.as_tensor(x) for x in arrays]
    require_near(out, attended(*(x.double() for x in same)), attended(*same), DType.FP16)


@pytest.mark.parametrize("widths", [(48, 32), (32, 48), (20, 12)], ids=str)
def test_the_output_has_the_width_of_v(widths):
    q, k = (drawn(2, 70, 3, widths[0], seed=seed) for seed in (0, 1))
    v = drawn(2, 70, 3, widths[1], seed=2)
    tensors = map(torch.from_numpy, (q, k, v))
    out, lse = flash_attention(*tensors, causal=True, return_lse=True)
    assert out.shape == v.shape
    assert lse.shape == (2, 3, 70)
    require_right(out, q, k, v)


def test_the_choice_says_what_was_padded():
    q, k, v = drawn(1, 9, 2, 60), drawn(1, 9, 2, 60, seed=1), drawn(1, 9, 2, 40, seed=2)
    out, choice = flash_attention(q, k, v, explain=True)
    assert out.shape == v.shape
    assert "a copy pads q and k from 60 and v from 40 to 64 columns" in choice.reason


def test_a_narrower_v_is_read_where_it_is_and_out_written():
    q, k, v = drawn(1, 70, 3, 64), drawn(1, 70, 3, 64, seed=1), drawn(1, 70, 3, 40, seed=2)
    out = np.empty_like(v)
    _, choice = flash_attention(q, k, v, causal=True, explain=True, out=out)
    assert "pads" not in choice.reason
    require_right(out, q, k, v)
    with pytest.raises(ArgumentError, match=r"q and v make \(1, 70, 3, 40\)"):
        flash_attention(q, k, v, out=np.empty_like(q))
    tensors = [torch.from_numpy(x).to("meta") for x in (q, k, v)]
    assert torch.ops.flashsmith.forward(*tensors).shape == (1, 70, 3, 40)


def test_the_drop_ins_and_gradients_take_it():
    """192 and 128, as DeepSeek's: the scale is that of q's own width."""
    torch.manual_seed(0)
    q, k = (torch.randn(1, 2, 30, 192).bfloat16().requires_grad_() for _ in range(2))
    v = torch.randn(1, 2, 30, 128).bfloat16().requires_grad_()
    out = scaled_dot_product_attention(q, k, v, is_causal=True)
    sdpa = torch.nn.functional.scaled_dot_product_attention
    exact, near = (
        [x.detach().to(dtype).requires_grad_() for x in (q, k, v)]
        for dtype in (torch.float64, torch.bfloat16)
    )
    wanted, same = (sdpa(*own, is_causal=True) for own in (exact, near))
    require_near(out, wanted, same, DType.BF16)
    for result in (out, wanted, same):
        result.sum().backward()
    for own in zip((q, k, v), exact, near, strict=True):
        require_near(*(x.grad for x in own), DType.BF16)
    packed = [x.detach()[0].transpose(0, 1) for x in (q, k, v)]
    ends = torch.tensor([0, 30], dtype=torch.int32)
    found = flash_attn_varlen_func(*packed, ends, ends, 30, 30, causal=True)
    require_near(found.transpose(0, 1), wanted[0], same[0], DType.BF16)


def test_what_cannot_be_is_refused_by_name():
    q, v = drawn(1, 9, 2, 64), drawn(1, 9, 2, 42)
    with pytest.raises(Unsupported, match="q has d_head 64 and v 42, of which flashsmith pads"):
        flash_attention(q, q, v, out=np.empty_like(v))
    wide = drawn(1, 9, 2, 520)
    for v in (wide, wide[..., :64]):
        with pytest.raises(Unsupported, match="1,024 columns would take 212,992 bytes of shared"):
            flash_attention(wide, wide, v)
