"""attention_chunk of FlashAttention-3's functions: every chunk of keys is seen by its own rows."""

import random
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from nearness import expected_of, require_expected  # noqa: E402

from flashsmith.base.dtypes import DType  # noqa: E402
from flashsmith.base.errors import ArgumentTypeError, Unsupported  # noqa: E402
from flashsmith.integrations import flash_attn_3  # noqa: E402
from flashsmith.integrations.chunks import chunk_boundaries  # noqa: E402
from flashsmith.problem.attention import AttentionProblem  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::flashsmith.FlashsmithWarning")


def truth(q, k, v, chunk, *, causal, window, dtype=torch.float64):
    """Of one sequence, (rows, heads, d), in float64 or `dtype`, the mask written out."""
    q, k, v = (x.to(dtype).transpose(0, 1) for x in (q, k, v))
    rows, keys = q.shape[1], k.shape[1]
    at = torch.arange(rows)[:, None] + keys - rows
    key = torch.arange(keys)[None]
    seen = (key >= at - at % chunk) & (key < at - at % chunk + chunk)
    if causal:
        seen &= key <= at
    if window >= 0:
        seen &= key >= at - window
    s = (q @ k.transpose(1, 2) * q.shape[-1] ** -0.5).masked_fill(~seen, -torch.inf)
    weights = s.softmax(-1).nan_to_num() if keys else s
    return (weights @ v).transpose(0, 1)


def assert_near(found, right, same):
    """At most twice as far from float64 as the same sums in 16 bits are, and a digit."""
    if not right.numel():
        return
    digit = torch.finfo(torch.float16).eps * right.abs().max()
    far = (same.double() - right).abs().max()
    assert (found.double() - right).abs().max() <= 2 * far + digit


@pytest.mark.parametrize("seed", range(6))
def test_packed_sequences_see_their_chunks(seed):
    draw, chunk = random.Random(seed), (5, 16)[seed % 2]
    torch.manual_seed(seed)
    of_q, of_k = ([draw.choice((0, 1, 7, 16, 33)) for _ in range(5)] for _ in "qk")
    causal, window = draw.random() < 0.6, draw.choice((-1, 3))
    q, k, v = (torch.randn(sum(n), 2, 16).half().requires_grad_() for n in (of_q, of_k, of_k))
    ends = [torch.tensor([0, *n]).cumsum(0).int() for n in (of_q, of_k)]
    out = flash_attn_3.flash_attn_varlen_func(
        *(q, k, v, *ends, 1, 1),
        causal=causal,
        window_size=(window, 0 if window >= 0 else -1),
        attention_chunk=chunk,
    )
    parts = [*zip(q.split(of_q), k.split(of_k), v.split(of_k), strict=True)]
    mask = {"causal": causal or window >= 0, "window": window}
    wanted, same = (
        torch.cat([truth(*qkv, chunk, **mask, dtype=dtype) for qkv in parts])
        for dtype in (torch.float64, torch.float16)
    )
    assert_near(out, wanted, same)
    d_out = torch.randn_like(out)
    gradients = (torch.autograd.grad(x, (q, k, v), d_out.to(x.dtype)) for x in (out, wanted, same))
    for mine, right, near in zip(*gradients, strict=True):
        assert_near(mine, right.double(), near)


@pytest.mark.parametrize(("rows", "keys"), [(40, 40), (3, 40), (40, 13), (1, 33)])
def test_batches_see_their_chunks(rows, keys):
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, n, 2, 16).half() for n in (rows, keys, keys))
    out, lse = flash_attn_3.flash_attn_func(
        q, k, v, causal=True, attention_chunk=16, return_attn_probs=True
    )
    for b in range(2):
        mask = {"causal": True, "window": -1}
        same = truth(q[b], k[b], v[b], 16, **mask, dtype=torch.float16)
        assert_near(out[b], truth(q[b], k[b], v[b], 16, **mask), same)
    assert lse.shape == (2, 2, rows)
    problem = AttentionProblem(2, 2, 2, rows, keys, 16, DType.FP16, causal=True, lse=True)
    plain = expected_of(problem, q=q, k=k, v=v)
    at = torch.arange(rows) + keys - rows
    first = (at >= 0) & (at < 16)  # rows of the first chunk see what they see without chunks
    for name, found, axis in (("o", out, 1), ("lse", lse, 2)):
        whole = plain[name]
        cut = (x.compress(first, axis) for x in (whole.truth, whole.relative_to))
        wanted = replace(whole, **dict(zip(("truth", "relative_to"), cut, strict=True)))
        require_expected({name: wanted}, **{name: found.numpy().compress(first, axis)})


def test_boundaries_never_fall_and_end_where_the_sequences_do():
    of_q, of_k = (torch.tensor(x, dtype=torch.int32) for x in ([0, 3, 40, 40], [0, 33, 33, 50]))
    q, k = chunk_boundaries(of_q, of_k, 50, 16)
    for found, own in ((q, of_q), (k, of_k)):
        assert found.dtype is torch.int32
        assert (found.diff() >= 0).all()
        assert found[0] == 0
        assert found[-1] == own[-1]
    assert k.diff().max() <= 16


def test_what_cannot_be_is_refused_by_name():
    q = torch.zeros(1, 4, 2, 16).half()
    with pytest.raises(ArgumentTypeError, match="attention_chunk is -1; it must be how many keys"):
        flash_attn_3.flash_attn_func(q, q, q, attention_chunk=-1)
    with pytest.raises(Unsupported, match="attention in chunks on a cache"):
        flash_attn_3.flash_attn_with_kvcache(q, q, q, attention_chunk=8)
    ends = torch.tensor([0, 4], dtype=torch.int32)
    with pytest.raises(Unsupported, match="attention_chunk and seqused_k are both given"):
        flash_attn_3.flash_attn_varlen_func(
            *(q[0], q[0], q[0], ends, ends, 4, 4), seqused_k=ends[1:], attention_chunk=8
        )
