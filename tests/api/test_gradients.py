"""Gradients through every door: arrays, autograd, compiled graphs; what cannot be is refused."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from nearness import require_near, rounded
from placed_arrays import NUMPY_TYPES, Placement, place
from standin_gpus import plug_in
from torch.utils.checkpoint import checkpoint

import flashsmith
from flashsmith import flash_attention, flash_attention_backward
from flashsmith.api import host_call, launches
from flashsmith.api.options import checked_options
from flashsmith.api.tables import BOUNDARIES, in_order
from flashsmith.base.dtypes import DType
from flashsmith.base.errors import ArgumentError, ArgumentTypeError, Unsupported
from flashsmith.check.cases import Case, inputs_of
from flashsmith.check.tolerance import distance, expectation_of
from flashsmith.problem.attention import AttentionProblem
from flashsmith.runtime.devices import default_device
from flashsmith.torch_op import cpu_backward, cuda_backward, fake_kernel
from flashsmith.torch_op.arguments import given_of

pytestmark = pytest.mark.filterwarnings("ignore::flashsmith.FlashsmithWarning")
PROBLEM = AttentionProblem(
    1, 6, 2, 70, 100, 64, DType.BF16, causal=True, operation="backward", layout="bshd"
)
CASE = Case("gradients", PROBLEM)
CONFIG = "bwd(BF16, 64): dkv_64_32_4+dq_64_32_4"
FORWARD = "(BF16, 64, 64, 32, 4): async+swizzled+load_2_2_2_tiles"
WHERE = [
    ("cpu", None),
    ("cpu", "emulator"),
    pytest.param("cuda", None, marks=pytest.mark.gpu),
]
NAMES = ("do", "q", "k", "v", "o", "lse")
TORCH_TYPES = {DType.FP16: torch.float16, DType.BF16: torch.bfloat16}


def arrays(case=CASE, placement=None, layout="bshd"):
    """NumPy arrays by name; rows of elements in `layout`."""
    given = inputs_of(case)
    dtype = NUMPY_TYPES[case.problem.dtype]
    made = {
        name: place(bits, placement or Placement(), layout).bits().view(dtype)
        for name, bits in given.items()
        if bits.ndim == 4
    }
    return {**made, "lse": given["lse"].view(np.float32)}


def tensors(case=CASE, where="cpu", **more):
    kind = TORCH_TYPES[case.problem.dtype]
    made = {}
    for name, array in arrays(case, **more).items():
        if name == "lse":
            made[name] = torch.from_numpy(array.copy()).to(where)
        else:
            made[name] = torch.from_numpy(array.view(np.int16)).to(where).view(kind)
    return made


def require_right(case, found, layout="bshd"):
    expected = expectation_of(case)
    for name, got in zip(("dq", "dk", "dv"), found, strict=True):
        numbers = np.asarray(got.float() if isinstance(got, torch.Tensor) else got, np.float32)
        rows = numbers if layout == "bshd" else numbers.transpose(0, 2, 1, 3)
        near = distance(name, expected[name], rows)
        assert near.ok, near


def leaves(given):
    return [given[name].detach().clone().requires_grad_() for name in "qkv"]


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
@pytest.mark.parametrize(
    "placement", [Placement(), Placement("bhsd", row_gap=8), Placement("bsdh")]
)
def test_numpy_arrays_of_any_strides_get_their_gradients(layout, placement):
    given = arrays(placement=placement, layout=layout)
    found = flash_attention_backward(
        *(given[name] for name in NAMES), causal=True, layout=layout, backend="emulator"
    )
    assert all(x.dtype == given["q"].dtype for x in found)
    require_right(CASE, found, layout)


def test_a_configuration_is_used_and_explained():
    given = arrays()
    *found, choice = flash_attention_backward(
        *(given[name] for name in NAMES),
        causal=True,
        config=CONFIG,
        backend="emulator",
        explain=True,
    )
    assert choice.config.short_form() == CONFIG
    require_right(CASE, found)


@pytest.mark.parametrize(("where", "backend"), WHERE)
@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
def test_autograd_gets_gradients_that_are_as_near_the_truth_as_they_can_be(where, backend, layout):
    given = tensors(where=where, layout=layout)
    q, k, v = leaves(given)
    out = flash_attention(q, k, v, causal=True, layout=layout, backend=backend)
    out.backward(given["do"])
    require_right(CASE, [x.grad.cpu() for x in (q, k, v)], layout)
    for x in (q, k, v):
        assert x.grad.stride() == x.stride()


@pytest.mark.parametrize(("where", "backend"), WHERE)
def test_a_window_has_gradients_through_every_door(where, backend):
    case = Case("window", replace(PROBLEM, causal=False, window_left=20, window_right=9))
    given = tensors(case, where=where)
    q, k, v = leaves(given)
    flash_attention(q, k, v, window=(20, 9), backend=backend).backward(given["do"])
    require_right(case, [x.grad.cpu() for x in (q, k, v)])
    inputs = [given[name] for name in NAMES]
    found = flash_attention_backward(*inputs, window_left=20, window_right=9, backend=backend)
    require_right(case, [x.cpu() for x in found])


@pytest.mark.parametrize(("where", "backend"), WHERE)
def test_a_cap_has_gradients(where, backend):
    case = Case("cap", replace(PROBLEM, softcap=2.0), gain=3.0)
    given = tensors(case, where=where)
    q, k, v = leaves(given)
    flash_attention(q, k, v, causal=True, softcap=2.0, backend=backend).backward(given["do"])
    require_right(case, [x.grad.cpu() for x in (q, k, v)])


@pytest.mark.parametrize(("where", "backend"), WHERE)
def test_slopes_have_gradients_of_the_others(where, backend):
    case = Case("slopes", replace(PROBLEM, alibi=True))
    given = tensors(case, where=where)
    own = torch.from_numpy(inputs_of(case)["alibi_slopes"].view(np.float32).copy()).to(where)
    q, k, v = leaves(given)
    wish = {"backend": backend, "config": FORWARD if backend == "emulator" else None}
    out = flash_attention(q, k, v, causal=True, alibi_slopes=own, **wish)
    out.backward(given["do"])
    require_right(case, [x.grad.cpu() for x in (q, k, v)])


@pytest.mark.parametrize("deterministic", [True, False])
def test_a_call_may_free_the_order_of_sums_of_its_gradients(deterministic, monkeypatch):
    asked = []

    def attend_bits(device, problem, bits, options):
        asked.append(problem)
        return host_call.attend_bits(device, problem, bits, options)

    monkeypatch.setattr(cpu_backward, "attend_bits", attend_bits)
    given = tensors()
    q, k, v = leaves(given)
    wish = {"causal": True, "backend": "emulator", "deterministic": deterministic}
    out, choice = flash_attention(q, k, v, explain=True, **wish)
    assert choice == flash_attention(q, k, v, causal=True, backend="emulator", explain=True)[1]
    out.backward(given["do"])
    require_right(CASE, [x.grad for x in (q, k, v)])
    flash_attention_backward(*(given[name] for name in NAMES), **wish)
    assert [problem.deterministic for problem in asked] == [deterministic] * 2
    with pytest.raises(ArgumentTypeError, match="deterministic is 0; it must be True or False"):
        flash_attention(q, k, v, deterministic=0)


def by_definition(given, sinks, weights, kept=None):
    """Gradients of q, k, v and sinks in float64, from the definition; causal, bottom-right.

    Weights, the output and gradients may be kept in fewer bits.
    """
    leaf = [given[name].detach().cpu().double().requires_grad_() for name in "qkv"]
    logits = sinks.detach().cpu().double().requires_grad_()
    q, k, v = (rounded(x, kept).transpose(1, 2) for x in leaf)
    scores = q @ k.repeat_interleave(3, 1).transpose(-1, -2) / 8
    scores = scores.masked_fill(~torch.ones(70, 100, dtype=torch.bool).tril(30), -torch.inf)
    column = logits[None, :, None, None].expand(*scores.shape[:3], 1)
    scores = torch.cat([scores, column], -1)
    out = rounded(scores.softmax(-1)[..., :-1], kept) @ v.repeat_interleave(3, 1)
    loss = (rounded(out, kept) * given["do"].cpu().transpose(1, 2)).sum()
    loss = loss + (scores.logsumexp(-1) * weights.cpu()).sum()
    return torch.autograd.grad(loss, [*leaf, logits])


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
@pytest.mark.parametrize(("where", "backend"), WHERE)
def test_sinks_have_gradients_and_so_have_calls_with_them(where, backend, layout):
    given, rows = tensors(where=where), tensors(where=where, layout=layout)
    sinks = torch.linspace(-2, 3, 6, device=where).to(torch.bfloat16).requires_grad_()
    own = leaves(rows)
    out, lse = flash_attention(
        *own, sinks=sinks, causal=True, layout=layout, return_lse=True, backend=backend
    )
    weights = torch.linspace(-1, 2, lse.numel(), device=where).reshape(lse.shape)
    loss = (out * rows["do"]).sum() + (lse * weights).sum()
    found = torch.autograd.grad(loss, [*own, sinks])
    assert found[3].dtype == sinks.dtype
    exact, near = (by_definition(given, sinks, weights, kept) for kept in (None, DType.BF16))
    for got, truth, same in zip(found, exact, near, strict=True):
        got = got if layout == "bshd" or got.dim() == 1 else got.transpose(1, 2)
        require_near(got, truth, same, DType.BF16)
    plain = flash_attention(
        *own, sinks=sinks, causal=True, layout=layout, return_lse=False, backend=backend
    )
    (alone,) = torch.autograd.grad((plain * rows["do"]).sum(), [sinks])
    assert alone.isfinite().all()


def test_sinks_alone_may_want_their_gradient_also_in_a_compiled_step():
    torch._dynamo.reset()
    given = tensors()

    def step(sinks):
        inputs = [given[name] for name in "qkv"]
        return (flash_attention(*inputs, sinks=sinks, causal=True) * given["do"]).sum()

    found = []
    for call in (step, torch.compile(step, fullgraph=True, backend="aot_eager")):
        sinks = torch.linspace(-2, 3, 6).requires_grad_()
        call(sinks).backward()
        found.append(sinks.grad)
    assert found[0].any()
    assert torch.equal(*found)
    _, pull = torch.func.vjp(step, torch.linspace(-2, 3, 6))
    assert torch.equal(pull(torch.tensor(1.0))[0], found[0])


def test_a_sink_of_minus_infinity_has_no_gradient_and_spoils_none():
    """Rows before the first key that they see have no other share than its."""
    case = Case("hidden", replace(PROBLEM, q_len=150, k_len=100))
    given = tensors(case)
    own, sinks = leaves(given), torch.full((6,), -torch.inf).requires_grad_()
    flash_attention(*own, sinks=sinks, causal=True).backward(given["do"])
    require_right(case, [x.grad for x in own])
    assert not sinks.grad.any()


@pytest.mark.parametrize("dtype", DType)
def test_gradients_are_no_further_off_than_those_of_torchs_math(dtype):
    """Against float64, and torch's own attention in the same element type."""
    case = Case("sdpa", replace(PROBLEM, dtype=dtype, causal=False, q_len=65, k_len=65))
    given = tensors(case, layout="bhsd")
    own, theirs, exact = leaves(given), leaves(given), []
    flash_attention(*own, layout="bhsd", backend="emulator").backward(given["do"])
    call = torch.nn.functional.scaled_dot_product_attention
    call(*theirs, enable_gqa=True).backward(given["do"])
    exact = [x.detach().double().requires_grad_() for x in theirs]
    call(*exact, enable_gqa=True).backward(given["do"].double())
    for a, b, truth in zip(own, theirs, exact, strict=True):
        errors = [(x.grad.double() - truth.grad).norm() for x in (a, b)]
        assert errors[0] <= 2 * errors[1]


def test_the_operator_gives_autograd_the_bits_of_the_plain_call():
    given = tensors()
    q, k, v = leaves(given)
    out, lse = flash_attention(q, k, v, causal=True, backend="emulator", return_lse=True)
    out.backward(given["do"])
    plain = flash_attention_backward(
        given["do"], q, k, v, out.detach(), lse.detach(), causal=True, backend="emulator"
    )
    assert all(torch.equal(x.grad, y) for x, y in zip((q, k, v), plain, strict=True))


@pytest.mark.parametrize("wanted", ["q", "k", "v"])
def test_one_tensor_alone_may_want_its_gradient(wanted):
    given = tensors()
    inputs = {name: given[name].clone().requires_grad_(name == wanted) for name in "qkv"}
    flash_attention(*inputs.values(), causal=True).sum().backward()  # a gradient of stride 0
    assert [name for name, x in inputs.items() if x.grad is not None] == [wanted]
    assert inputs[wanted].grad.isfinite().all()


def test_scaled_dot_product_attention_and_flash_attn_func_have_gradients_too():
    given = tensors()
    q, k, v = leaves(given)
    flashsmith.flash_attn_func(q, k, v, causal=True).backward(given["do"])
    require_right(CASE, [x.grad for x in (q, k, v)])
    rows = [x.detach().transpose(1, 2).requires_grad_() for x in (q, k, v)]
    out = flashsmith.scaled_dot_product_attention(*rows, enable_gqa=True)
    out.backward(given["do"].transpose(1, 2))
    again = [x.detach().requires_grad_() for x in rows]
    exact = [x.detach().double().requires_grad_() for x in rows]
    for theirs in (again, exact):
        out = torch.nn.functional.scaled_dot_product_attention(*theirs, enable_gqa=True)
        out.backward(given["do"].transpose(1, 2).to(out.dtype))
    for mine, same, truth in zip(rows, again, exact, strict=True):
        require_near(mine.grad, truth.grad, same.grad, DType.BF16)


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_compiled_step_has_the_same_gradients(dynamic):
    torch._dynamo.reset()
    given = tensors()

    def step(q, k, v):
        return flash_attention(q, k, v, causal=True) * 2

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    found = []
    for call in (step, compiled):
        q, k, v = leaves(given)
        call(q, k, v).backward(given["do"])
        found.append([x.grad for x in (q, k, v)])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_activation_checkpointing_gives_the_same_gradients():
    given = tensors()

    def attend(*inputs):
        return flash_attention(*inputs, causal=True)

    found = []
    for call in (attend, lambda *x: checkpoint(attend, *x, use_reentrant=False)):
        q, k, v = leaves(given)
        call(q, k, v).backward(given["do"])
        found.append([x.grad for x in (q, k, v)])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_vjp_of_torch_func_is_the_gradient():
    given = tensors()
    q, k, v = leaves(given)
    flash_attention(q, k, v, causal=True).backward(given["do"])
    plain = [given[name] for name in "qkv"]
    _, pull = torch.func.vjp(lambda *x: flash_attention(*x, causal=True), *plain)
    assert all(torch.equal(x.grad, y) for x, y in zip((q, k, v), pull(given["do"]), strict=True))


def test_the_operators_pass_torchs_own_checks():
    given = tensors()
    inputs = [given[name] for name in NAMES]
    torch.library.opcheck(torch.ops.flashsmith.backward.default, (*inputs, given["lse"], True))
    torch.library.opcheck(torch.ops.flashsmith.forward_lse.default, (*leaves(given), True))
    sinks = torch.linspace(-1, 1, 6).requires_grad_()
    ends = [torch.tensor([0, 30, rows], dtype=torch.int32) for rows in (70, 100)]
    one = [x[:1].detach().requires_grad_() for x in leaves(given)]
    for tensors_and_tables in (
        (*leaves(given), sinks, None, None, None, None),
        (*one, None, None, *ends, None),
    ):
        torch.library.opcheck(
            torch.ops.flashsmith.forward_kept.default, (*tensors_and_tables, True)
        )


def test_a_forward_configuration_is_not_handed_to_the_backward_pass():
    given = tensors()
    q, k, v = leaves(given)
    out = flash_attention(q, k, v, causal=True, backend="emulator", config=FORWARD)
    out.backward(given["do"])
    require_right(CASE, [x.grad for x in (q, k, v)])


@pytest.mark.parametrize("backend", [None, "emulator"])
def test_a_gradient_of_the_log_sum_exp_counts(backend):
    given = tensors()
    own = leaves(given)
    out, lse = flash_attention(*own, causal=True, return_lse=True, backend=backend)
    weights = torch.linspace(-1, 2, lse.numel()).reshape(lse.shape)
    found = torch.autograd.grad((lse * weights).sum() + (out * given["do"]).sum(), own)
    none = torch.full((6,), -torch.inf)  # sinks that take nothing
    exact, near = (by_definition(given, none, weights, kept)[:3] for kept in (None, DType.BF16))
    for got, truth, same in zip(found, exact, near, strict=True):
        require_near(got, truth, same, DType.BF16)
    alone = torch.autograd.grad(
        flash_attention(*own, causal=True, return_lse=True, backend=backend)[1].sum(), own[:2]
    )
    assert all(x.isfinite().all() and x.any() for x in alone)


def tangent():
    q = tensors()["q"][..., :6, :]
    torch.func.jvp(lambda x: flash_attention(x, x, x), (q,), (q,))


def second():
    given = tensors()
    q, k, v = leaves(given)
    (gradient,) = torch.autograd.grad(flash_attention(q, k, v).sum(), q, create_graph=True)
    gradient.sum().backward()


def slopes():
    given = tensors()
    flash_attention(*leaves(given), alibi_slopes=torch.ones(6).requires_grad_())


def lengths():
    given = tensors()
    flash_attention(*leaves(given), k_lengths=torch.tensor([9, 9], dtype=torch.int32))


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (slopes, r"alibi_slopes requires a gradient; .*pass alibi_slopes\.detach\(\)"),
        (lengths, "k_lengths is given and a gradient is wanted; flashsmith has no backward pass"),
        (tangent, "q carries a tangent .*reverse-mode gradients only"),
        (second, "a gradient of a gradient was asked for; flashsmith differentiates once"),
    ],
)
def test_what_has_no_gradient_is_refused_by_name(call, says):
    with pytest.raises(Unsupported, match=says):
        call()


@pytest.mark.parametrize(
    ("changed", "error", "says"),
    [
        ({"o": lambda x: x[:, :-1]}, ArgumentError, r"o has shape .* and q .*; they must be equal"),
        ({"do": lambda x: x.astype(np.float32)}, ArgumentTypeError, "do is float32 and q is bfl"),
        (
            {"lse": lambda x: x.astype(np.float64)},
            ArgumentTypeError,
            "lse is float64; it must be float",
        ),
        ({"lse": lambda x: x.transpose(0, 2, 1)}, ArgumentError, r"lse has shape .*heads, queries"),
        ({"q": lambda x: x[..., :4]}, ArgumentError, "q has d_head 4 and k has 64"),
    ],
)
def test_bad_inputs_of_a_backward_call_are_named(changed, error, says):
    given = arrays()
    given |= {name: change(given[name]) for name, change in changed.items()}
    with pytest.raises(error, match=says):
        flash_attention_backward(*(given[name] for name in NAMES), backend="emulator")


def on_a_gpu(monkeypatch):
    """A stand-in, whose starts are listed."""
    gpus = plug_in(monkeypatch, "NVIDIA H200")
    monkeypatch.setattr(cuda_backward, "gpu_device", lambda view, backend: default_device("cuda"))
    monkeypatch.setattr(cuda_backward, "current_stream", lambda ordinal: 0)
    monkeypatch.setattr(launches, "KEPT_LAUNCHES", {})
    return gpus


def test_on_a_gpu_packed_gradients_start_behind_two_lists(monkeypatch):
    gpus = on_a_gpu(monkeypatch)
    given = tensors()
    inputs = [given[name] for name in NAMES]
    ends = {name: torch.tensor([0, 9, 70], dtype=torch.int32) for name in BOUNDARIES}
    asked = given_of(checked_options(causal=True, config=CONFIG))
    made = cuda_backward.backward_with(*inputs, None, in_order(ends), *asked)
    promised = fake_kernel.backward_with(*inputs, None, in_order(ends), *asked)
    assert [(x.shape, x.stride()) for x in made] == [(x.shape, x.stride()) for x in promised]
    names = [started.kernel.partition("_BF16")[0] for started in gpus.started]
    assert [name.removeprefix("flashsmith_")[:17] for name in names] == [
        *("tile_list_128__ca", "tile_list_128__pl"),
        *("sm80_backward_del", "sm80_backward_dkv", "sm80_backward_dq"),
    ]
    dense = cuda_backward.backward(*inputs, None, *asked)  # the same shapes, another launch
    assert len(gpus.started) == 8
    assert [x.shape for x in dense] == [x.shape for x in made]


def test_on_a_gpu_three_kernels_start_and_the_gradients_are_those_that_tracing_promises(
    monkeypatch,
):
    gpus = on_a_gpu(monkeypatch)
    given = tensors()
    inputs = [given[name] for name in NAMES]
    asked = given_of(checked_options(causal=True, config=CONFIG))
    for _ in range(2):
        made = cuda_backward.backward(*inputs, None, *asked)
    promised = fake_kernel.backward(*inputs, None, *asked)
    assert [x.shape for x in made] == [x.shape for x in promised]
    assert [x.stride() for x in made] == [x.stride() for x in promised]
    names = [started.kernel for started in gpus.started]
    assert [name.partition("_BF16")[0] for name in names[:3]] == [
        "flashsmith_sm80_backward_delta",
        "flashsmith_sm80_backward_dkv",
        "flashsmith_sm80_backward_dq",
    ]
    assert names[3:] == names[:3]
