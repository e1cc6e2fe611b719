"""Gradients of calls with a bias, and of the bias itself, through every door."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from nearness import require_near
from standin_gpus import plug_in

from flashsmith import (
    flash_attention,
    flash_attention_backward,
    scaled_dot_product_attention,
)
from flashsmith.api import host_call, launches
from flashsmith.api.options import checked_options
from flashsmith.api.tables import in_order
from flashsmith.base.dtypes import DType
from flashsmith.base.errors import ArgumentError, Unsupported
from flashsmith.check.same_precision import same_precision
from flashsmith.check.tolerance import FACTOR
from flashsmith.integrations import torch as integration
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.reference import reference
from flashsmith.runtime.devices import default_device
from flashsmith.torch_op import cuda_backward, fake_kernel
from flashsmith.torch_op.arguments import given_of

BATCH, HEADS, ROWS, KEYS = 2, 3, 37, 150
DRAW = torch.Generator().manual_seed(13)
Q, DO = (torch.randn(BATCH, HEADS, ROWS, 64, generator=DRAW).bfloat16() for _ in range(2))
K, V = (torch.randn(BATCH, HEADS, KEYS, 64, generator=DRAW).bfloat16() for _ in "kv")
MASKS = {
    "padding": torch.rand(BATCH, 1, 1, KEYS, generator=DRAW) < 0.7,
    "of two dimensions": torch.rand(ROWS, KEYS, generator=DRAW) < 0.7,
    "of every head": torch.randn(1, HEADS, ROWS, KEYS, generator=DRAW).bfloat16(),
    "transposed": torch.randn(HEADS, KEYS, ROWS, generator=DRAW).mT,
    "of rows": torch.randn(BATCH, 1, ROWS, 1, generator=DRAW),
    "of keys": torch.randn(KEYS, generator=DRAW)[None],
    "of everything": torch.randn(BATCH, HEADS, ROWS, KEYS, generator=DRAW),
    "with a step": torch.randn(BATCH, HEADS, ROWS, 3 * KEYS, generator=DRAW)[..., ::3],
    "expanded": torch.randn(1, 1, ROWS, KEYS, generator=DRAW).expand(BATCH, HEADS, -1, -1),
}
BACKENDS = pytest.mark.parametrize("backend", [None, "emulator"])


def leaves(mask):
    """Q, K, V and the mask, as far as they have gradients."""
    own = [x.detach().clone().requires_grad_() for x in (Q, K, V)]
    if mask.dtype is torch.bool:
        return own, mask
    return own, mask.detach().requires_grad_()


KINDS = {torch.bool: "bool", torch.float32: "float32", torch.bfloat16: "same"}


def truths(mask, tables=None, **facts):
    """Of dq, dk, dv, the mask and sinks: in float64, and of the same sums in 16 bits."""
    shape = (BATCH, HEADS, HEADS, ROWS, KEYS, 64, DType.BF16)
    problem = AttentionProblem(*shape, bias=KINDS[mask.dtype], lse=True, **facts)
    mask = mask.detach()
    given = {n: x.transpose(1, 2).float().numpy() for n, x in zip("qkv", (Q, K, V), strict=True)}
    given |= {"bias": mask.float().expand(BATCH, HEADS, ROWS, KEYS).numpy(), **(tables or {})}
    do = DO.transpose(1, 2).float().numpy()
    back = replace(problem, operation="backward", lse=False, dbias=KINDS[mask.dtype] != "bool")
    found = []
    for compute in (reference, same_precision):
        out = same_precision(problem, given)  # which the reference does not look at
        one = compute(back, {**given, **out, "do": do})
        made = [torch.from_numpy(one[name]).transpose(1, 2) for name in ("dq", "dk", "dv")]
        if back.dbias:
            of_mask = torch.from_numpy(one["dbias"]).sum_to_size(mask.shape)
            made.append(of_mask.to(mask.dtype) if compute is same_precision else of_mask)
        if "sinks" in given:
            o, lse = (compute(problem, given)[name] for name in ("o", "lse"))
            delta = (do * o).sum(-1).transpose(0, 2, 1)
            of_sinks = -np.exp(given["sinks"][:, None] - lse) * delta
            made.append(torch.from_numpy(of_sinks.sum((0, 2))))
        found.append(made)
    return list(zip(*found, strict=True))


def require_all(found, wanted):
    for got, (truth, same) in zip(found, wanted, strict=True):
        error = same.double() - truth
        if truth.abs().max() > error.abs().max():
            require_near(got, truth, same, DType.BF16)
            continue
        # A number added to all scores of a row changes nothing: its gradient is all rounding, and
        # of some dozens of those the largest is a matter of luck.
        assert got.shape == truth.shape
        assert (got.double() - truth).norm() <= FACTOR * error.norm()


@BACKENDS
@pytest.mark.parametrize("name", MASKS)
def test_autograd_gets_gradients_of_all_that_asks_for_one(name, backend, monkeypatch):
    if backend:
        monkeypatch.setenv("FLASHSMITH_DEVICE", backend)
    own, mask = leaves(MASKS[name])
    out = flash_attention(*own, layout="bhsd", bias=mask, backend=backend)
    wanted = [*own, *([mask] if mask.requires_grad else [])]
    found = torch.autograd.grad(out, wanted, DO)
    require_all(found, truths(MASKS[name]))
    assert [x.dtype for x in found] == [x.dtype for x in wanted]


def test_a_bias_alone_may_want_its_gradient_and_others_alone():
    mask = MASKS["of every head"].clone().requires_grad_()
    out = flash_attention(Q, K, V, layout="bhsd", bias=mask)
    require_all(torch.autograd.grad(out, [mask], DO), truths(mask)[3:])
    (q, k, v), _ = leaves(mask)
    out = flash_attention(q, k, v, layout="bhsd", bias=mask.detach())
    require_all(torch.autograd.grad(out, [q], DO), truths(mask)[:1])


@BACKENDS
def test_a_bias_beside_every_other_fact_has_gradients(backend):
    sinks, slopes = torch.tensor([0.5, -1.0, 2.0]), torch.tensor([0.02, 0.1, 0.3])
    own, mask = leaves(MASKS["of every head"])
    sinks.requires_grad_()
    facts = {"causal": True, "softcap": 5.0, "alibi_slopes": slopes, "backend": backend}
    out = flash_attention(*own, layout="bhsd", bias=mask, sinks=sinks, **facts)
    found = torch.autograd.grad(out, [*own, mask, sinks], DO)
    tables = {"alibi_slopes": slopes.expand(BATCH, -1).numpy(), "sinks": sinks.detach().numpy()}
    require_all(found, truths(mask, tables, causal=True, softcap=5.0, alibi=True, sinks=True))


def test_torchs_own_calls_are_taken_with_their_masks():
    own, mask = leaves(MASKS["of every head"])
    with integration.sdpa(cpu=True) as routes:
        out = F.scaled_dot_product_attention(*own, attn_mask=mask)
    assert [route.choice for route in routes.counts()] == ["flashsmith"]
    require_all(torch.autograd.grad(out, [*own, mask], DO), truths(mask))


def test_a_compiled_step_has_the_same_gradients():
    own, mask = leaves(MASKS["of every head"])

    def step(q, k, v, mask):
        return scaled_dot_product_attention(q, k, v, attn_mask=mask)

    compiled = torch.compile(step, backend="aot_eager", fullgraph=True)
    plain, made = (
        torch.autograd.grad(call(*own, mask), [*own, mask], DO) for call in (step, compiled)
    )
    assert all(torch.equal(a, b) for a, b in zip(plain, made, strict=True))


def test_transforms_of_torch_func_see_the_bias():
    mask = MASKS["of every head"].float()

    def loss(q, mask):
        out = flash_attention(q, K, V, layout="bhsd", bias=mask)
        return (out.float() * DO.float()).sum()

    dq, *_, of_mask = truths(mask)
    require_all(torch.func.grad(loss, argnums=(0, 1))(Q, mask), (dq, of_mask))
    many = torch.stack([mask, 2 * mask, -mask])
    found = torch.vmap(torch.func.grad(loss, argnums=1), in_dims=(None, 0))(Q, many)
    for got, one in zip(found, many, strict=True):
        require_all([got], truths(one)[3:])


def test_the_operators_pass_torchs_own_checks():
    mask = MASKS["of every head"].clone().requires_grad_()
    facts = (False, None, None, "bhsd")
    out, lse = torch.ops.flashsmith.forward_kept(Q, K, V, *[None] * 4, mask, *facts)
    inputs = [x.detach() for x in (DO, Q, K, V, out, lse)]
    tables = in_order({"bias": mask.detach()})
    torch.library.opcheck(
        torch.ops.flashsmith.backward_bias.default, (*inputs, None, tables, *facts)
    )
    own, _ = leaves(mask)
    torch.library.opcheck(
        torch.ops.flashsmith.forward_kept.default, (*own, *[None] * 4, mask, *facts)
    )


def test_a_second_gradient_is_refused_and_a_tangent_too():
    own, mask = leaves(MASKS["of every head"])
    out = flash_attention(*own, layout="bhsd", bias=mask)
    (first,) = torch.autograd.grad(out, [mask], DO, create_graph=True)
    with pytest.raises(Unsupported, match="a gradient of a gradient"):
        first.float().sum().backward()


@pytest.mark.parametrize("hides", [-np.inf, float(torch.finfo(torch.bfloat16).min)])
@BACKENDS
def test_rows_that_see_nothing_have_no_gradient(hides, backend):
    mask = torch.zeros(BATCH, 1, ROWS, KEYS, dtype=torch.bfloat16)
    mask[:, :, 5:8] = hides
    mask[1] = hides  # a whole sequence
    own, mask = leaves(mask)
    out = flash_attention(*own, layout="bhsd", bias=mask, backend=backend)
    dq, dk, dv, dmask = torch.autograd.grad(out, [*own, mask], DO)
    assert all(x.isfinite().all() for x in (dq, dk, dv, dmask))
    assert not dq[:, :, 5:8].any()
    assert not dmask[:, :, 5:8].any()
    assert not any(x[1].any() for x in (dq, dk, dv, dmask))
    assert all(x[0].any() for x in (dq, dk, dv, dmask))


@BACKENDS
@pytest.mark.parametrize("shape", [(0, 5, 9), (2, 0, 9), (2, 5, 0)])
def test_where_nothing_is_computed_gradients_are_zero(shape, backend):
    batch, rows, keys = shape
    q, k = (torch.zeros(batch, 3, n, 64, dtype=torch.bfloat16) for n in (rows, keys))
    bias = torch.zeros(1, 3, rows, keys)
    own = [x.requires_grad_() for x in (q, k, bias)]
    out = flash_attention(q, k, k, layout="bhsd", bias=bias, backend=backend)
    found = torch.autograd.grad(out.float().sum(), own)
    assert [x.shape for x in found] == [x.shape for x in own]
    assert not any(x.any() for x in found)


def test_numpy_arrays_get_the_gradient_in_the_shape_and_type_of_the_bias(monkeypatch):
    went_up = []
    upload = host_call.uploaded

    def watched(device, buffers):
        went_up.append(buffers["bias"].size)
        return upload(device, buffers)

    monkeypatch.setattr(host_call, "uploaded", watched)
    q, k, v, do = (x.float().numpy().astype(ml_dtypes.bfloat16) for x in (Q, K, V, DO))
    for name in ("of rows", "of every head", "transposed"):
        mask = MASKS[name]
        bias = mask.float().numpy()
        bias = bias.astype(ml_dtypes.bfloat16) if mask.dtype is torch.bfloat16 else bias
        options = {"layout": "bhsd", "bias": bias, "backend": "emulator"}
        o, lse = flash_attention(q, k, v, return_lse=True, **options)
        *rows, dbias = flash_attention_backward(do, q, k, v, o, lse, dbias=True, **options)
        assert dbias.dtype == bias.dtype
        found = [torch.from_numpy(x.astype(np.float32)) for x in (*rows, dbias)]
        require_all(found, truths(mask))
        plain = flash_attention_backward(do, q, k, v, o, lse, **options)
        assert all(np.array_equal(a, b) for a, b in zip(rows, plain, strict=True))
        assert set(went_up) == {bias.size}  # what is broadcast stays as it is
        went_up.clear()


@pytest.mark.parametrize(
    ("bias", "says"),
    [
        (None, "dbias is True and no bias is given; pass the bias"),
        (np.ones((ROWS, KEYS), np.bool_), "dbias is True and bias is 'bool'; only numbers"),
    ],
)
def test_a_gradient_of_what_has_none_is_refused_by_name(bias, says):
    q, k, v, do = (x.float().numpy().astype(ml_dtypes.bfloat16) for x in (Q, K, V, DO))
    options = {"layout": "bhsd", "bias": bias, "backend": "emulator", "dbias": True}
    lse = np.zeros((BATCH, HEADS, ROWS), np.float32)
    with pytest.raises(ArgumentError, match=says):
        flash_attention_backward(do, q, k, v, q, lse, **options)


def test_on_a_gpu_a_fourth_kernel_starts_and_the_bias_is_not_copied(monkeypatch):
    gpus = plug_in(monkeypatch, "NVIDIA H200")
    monkeypatch.setattr(cuda_backward, "gpu_device", lambda view, backend: default_device("cuda"))
    monkeypatch.setattr(cuda_backward, "current_stream", lambda ordinal: 0)
    monkeypatch.setattr(launches, "KEPT_LAUNCHES", {})
    calls = []
    monkeypatch.setattr(
        cuda_backward, "call_of", lambda *given: calls.append(launches.call_of(*given)) or calls[-1]
    )
    lse = torch.zeros(BATCH, HEADS, ROWS)
    asked = given_of(checked_options(layout="bhsd"))
    for name in ("of rows", "transposed", "expanded"):
        gpus.started.clear()
        tables = in_order({"bias": MASKS[name]})
        made = cuda_backward.backward_bias(DO, Q, K, V, Q, lse, None, tables, *asked)
        promised = fake_kernel.backward_bias(DO, Q, K, V, Q, lse, None, tables, *asked)
        assert [(x.shape, x.dtype) for x in made] == [(x.shape, x.dtype) for x in promised]
        names = [started.kernel.partition("_BF16")[0] for started in gpus.started]
        assert [name.removeprefix("flashsmith_sm80_backward_") for name in names] == [
            *("delta", "dkv", "dq", "dbias"),
        ]
        assert calls[-1]["bias"].address == MASKS[name].data_ptr()
    gpus.started.clear()
    cuda_backward.backward_with(DO, Q, K, V, Q, lse, None, tables, *asked)
    assert len(gpus.started) == 3
