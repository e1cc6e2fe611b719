"""A bias, or torch's attn_mask, through every door: broadcast, at any stride, and not copied."""

import ml_dtypes
import numpy as np
import pytest
import torch
from nearness import expected_of, require_expected

from flashsmith import flash_attention, scaled_dot_product_attention
from flashsmith.api import host_call
from flashsmith.api.array_view import ArrayView
from flashsmith.api.bias import bias_arg, broadcast_view
from flashsmith.base.dtypes import DType
from flashsmith.kernels.arguments import ScoresArg
from flashsmith.problem.attention import AttentionProblem
from flashsmith.torch_op import cpu_kernel
from flashsmith.torch_op.tables import expanded

MMA = "(BF16, 64, 64, 64, 4): async+eager+swizzled+load_0_2_2_tiles+opt_softmax"
BATCH, HEADS, ROWS, KEYS = 2, 3, 37, 150
DRAW = torch.Generator().manual_seed(11)
Q = torch.randn(BATCH, HEADS, ROWS, 64, generator=DRAW).bfloat16()
K, V = (torch.randn(BATCH, HEADS, KEYS, 64, generator=DRAW).bfloat16() for _ in "kv")
MASKS = {
    "padding": torch.rand(BATCH, 1, 1, KEYS, generator=DRAW) < 0.7,
    "of two dimensions": torch.rand(ROWS, KEYS, generator=DRAW) < 0.7,
    "of every head": torch.randn(1, HEADS, ROWS, KEYS, generator=DRAW).bfloat16(),
    "transposed": torch.randn(HEADS, KEYS, ROWS, generator=DRAW).mT,
    "of rows": torch.randn(BATCH, 1, ROWS, 1, generator=DRAW),
    "with a step": torch.randn(BATCH, HEADS, ROWS, 3 * KEYS, generator=DRAW)[..., ::3],
}


KINDS = {torch.bool: "bool", torch.float32: "float32", torch.bfloat16: "same"}


def require_right(mask, out, lse=None, batch=BATCH):
    """Holds what the first sequences have got, heads before rows, against the truth."""
    shape = (batch, HEADS, HEADS, ROWS, KEYS, 64, DType.BF16)
    problem = AttentionProblem(*shape, bias=KINDS[mask.dtype], lse=lse is not None)
    q, k, v = (x[:batch].transpose(1, 2) for x in (Q, K, V))
    wanted = expected_of(problem, q=q, k=k, v=v, bias=mask.expand(batch, HEADS, ROWS, KEYS))
    assert out.dtype is Q.dtype
    found = {"o": out.transpose(1, 2)} | ({} if lse is None else {"lse": lse})
    require_expected(wanted, **found)


@pytest.mark.parametrize("mask", MASKS)
def test_the_drop_in_means_what_torch_means(mask):
    given = MASKS[mask]
    require_right(given, scaled_dot_product_attention(Q, K, V, attn_mask=given))
    own = given[0] if given.dim() == 4 else given
    found = scaled_dot_product_attention(Q[0], K[0], V[0], own)
    require_right(own, found[None], batch=1)


@pytest.mark.parametrize("mask", ["padding", "transposed", "of every head", "with a step"])
def test_kernels_read_a_bias_where_it_lies(mask, monkeypatch):
    """In the emulator: what goes up is the memory of the mask, not one of all scores."""
    went_up = []
    upload = host_call.uploaded

    def watched(device, buffers):
        went_up.append(buffers["bias"].size)
        return upload(device, buffers)

    monkeypatch.setattr(host_call, "uploaded", watched)
    given = MASKS[mask]
    out, lse = flash_attention(
        *(Q, K, V), layout="bhsd", bias=given, backend="emulator", config=MMA, return_lse=True
    )
    require_right(given, out, lse)
    assert went_up[0] <= given.untyped_storage().nbytes() // given.element_size()
    require_right(given, *flash_attention(Q, K, V, layout="bhsd", bias=given, return_lse=True))


def test_numpy_arrays_take_a_bias():
    def array(tensor):
        return tensor.transpose(1, 2).float().numpy().astype(ml_dtypes.bfloat16)

    given = MASKS["padding"].numpy()
    found = flash_attention(
        array(Q), array(K), array(V), bias=given, backend="emulator", config=MMA
    )
    out = torch.from_numpy(found.astype(np.float32)).to(Q.dtype).transpose(1, 2)
    require_right(MASKS["padding"], out)
    backwards = np.ascontiguousarray(given[..., ::-1])[..., ::-1]
    again = flash_attention(
        *(array(Q), array(K), array(V)), bias=backwards, backend="emulator", config=MMA
    )
    np.testing.assert_array_equal(found, again)


def test_a_compiled_call_takes_a_bias():
    def call(q, k, v, mask):
        return scaled_dot_product_attention(q, k, v, attn_mask=mask) + 1

    torch._dynamo.reset()
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    for mask in (MASKS["padding"], MASKS["transposed"]):
        assert torch.equal(compiled(Q, K, V, mask), call(Q, K, V, mask))
    meta = [t.to("meta") for t in (Q, K, V, MASKS["padding"])]
    assert scaled_dot_product_attention(*meta).shape == Q.shape


def test_a_bias_joins_a_diagonal_in_flash_attention():
    mask = MASKS["padding"]
    seen = torch.ones(ROWS, KEYS, dtype=torch.bool).tril(KEYS - ROWS) & mask
    found = flash_attention(Q, K, V, layout="bhsd", bias=mask, causal=True)
    require_right(seen, found)


def test_rows_that_see_nothing_give_zero():
    mask = MASKS["of two dimensions"].clone()
    mask[5] = False
    added = torch.zeros(ROWS, KEYS).masked_fill(~mask, torch.finfo(torch.float32).min)
    for given in (mask, added):
        found, lse = flash_attention(Q, K, V, layout="bhsd", bias=given, return_lse=True)
        assert not found[:, :, 5].any()
        assert torch.isneginf(lse[:, :, 5]).all()
        assert lse.isfinite().sum() == lse.numel() - BATCH * HEADS


def test_a_view_is_broadcast_by_strides_of_zero():
    view = ArrayView("bias", (3, 1, 8), (16, 16, 2), "bool", 640, "cuda:0")
    whole = broadcast_view(view, (2, 3, 5, 8))
    assert (whole.shape, whole.strides) == ((2, 3, 5, 8), (0, 16, 0, 2))
    assert bias_arg(whole) == ScoresArg(640, 0, 0, 16, 2)


def test_tensors_are_expanded_without_a_copy():
    mask = MASKS["padding"]
    whole = expanded({"bias": mask}, Q, K, "bhsd")["bias"]
    assert whole.shape == (BATCH, HEADS, ROWS, KEYS)
    assert whole.data_ptr() == mask.data_ptr()
    assert whole.stride() == (KEYS, 0, 0, 1)


def test_every_matrix_on_the_cpu_is_of_one_head(monkeypatch):
    """A bias of 16 bits is made float32 a head at a time."""
    sizes = []
    of_head = cpu_kernel.of_head

    def watched(tables, at, head):
        sizes.append(tables.keys())
        return of_head(tables, at, head)

    monkeypatch.setattr(cpu_kernel, "of_head", watched)
    mask = MASKS["of every head"]
    require_right(mask, scaled_dot_product_attention(Q, K, V, attn_mask=mask))
    assert len(sizes) == BATCH * HEADS
    assert not any("bias" in keys for keys in sizes)
