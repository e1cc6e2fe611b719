"""Packed sequences through the doors: NumPy and torch, three dimensions and four, compiled."""

import numpy as np
import pytest
import torch
from nearness import expected_gradients, expected_of, require_expected

import flashsmith
from flashsmith.base import settings
from flashsmith.base.dtypes import DType
from flashsmith.base.errors import ArgumentError, ArgumentTypeError
from flashsmith.problem.attention import AttentionProblem

ENDS_Q = np.array([0, 30, 30, 31, 90], np.int32)
ENDS_K = np.array([0, 50, 60, 60, 101], np.int32)
CONFIG = "(FP16, 64, 64, 64, 4): async+eager+swizzled+load_0_2_2_tiles+opt_softmax"


@pytest.fixture
def arrays():
    draw = np.random.default_rng(7)
    q = draw.standard_normal((90, 4, 64)).astype(np.float16)
    k, v = (draw.standard_normal((101, 2, 64)).astype(np.float16) for _ in range(2))
    return q, k, v


def alone(q, k, v, causal, kept_in=np.float64):
    """The definition, sequence by sequence; weights and output are kept in some precision."""
    out = np.zeros(q.shape, kept_in)
    for i in range(len(ENDS_Q) - 1):
        rows, keys = slice(ENDS_Q[i], ENDS_Q[i + 1]), slice(ENDS_K[i], ENDS_K[i + 1])
        n, m = ENDS_Q[i + 1] - ENDS_Q[i], ENDS_K[i + 1] - ENDS_K[i]
        seen = np.tri(n, m, m - n, dtype=bool) if causal else np.ones((n, m), bool)
        for head in range(q.shape[1]):
            s = q[rows, head].astype(float) @ k[keys, head // 2].astype(float).T / 8.0
            p = np.where(seen, np.exp(s), 0.0)
            total = np.maximum(p.sum(1, keepdims=True), 1e-30)
            p = (p / total).astype(kept_in).astype(float)
            out[rows, head] = p @ v[keys, head // 2].astype(float)
    return out.astype(float)


def require_right(found, arrays, causal):
    """At most twice as far from the definition as it is itself in half precision."""
    truth, half = (alone(*arrays, causal, kept_in) for kept_in in (np.float64, np.float16))
    assert abs(found.astype(float) - truth).max() <= 2 * abs(half - truth).max()


# Judged: the first choices for causal sequences spill and are passed over.
@pytest.mark.parametrize(
    "causal", [False, pytest.param(True, marks=pytest.mark.judged)], ids=["full", "causal"]
)
def test_the_drop_in_computes_each_sequence_alone_whatever_the_longest_lengths_say(arrays, causal):
    found, lse, _ = flashsmith.flash_attn_varlen_func(
        *arrays, ENDS_Q, ENDS_K, 1, 1, causal=causal, return_attn_probs=True
    )
    assert found.shape == arrays[0].shape
    assert lse.shape == (4, 90)
    require_right(found, arrays, causal)
    assert np.isneginf(lse[:, 30:31]).all()  # a row without a key
    assert not found[30:31].any()


def test_three_dimensions_and_a_batch_of_one_are_the_same(arrays):
    options = {"causal": True, "cu_seqlens_q": ENDS_Q, "cu_seqlens_k": ENDS_K, "config": CONFIG}
    three = flashsmith.flash_attention(*arrays, **options)
    four, lse = flashsmith.flash_attention(*(x[None] for x in arrays), return_lse=True, **options)
    assert four.shape == (1, 90, 4, 64)
    assert lse.shape == (1, 4, 90)
    for found in (three, four[0]):
        require_right(found, arrays, True)


@pytest.mark.parametrize("backend", [None, "emulator"])
def test_torch_tensors_give_the_same(arrays, backend):
    tensors = [torch.from_numpy(x) for x in arrays]
    ends = {"cu_seqlens_q": torch.from_numpy(ENDS_Q), "cu_seqlens_k": torch.from_numpy(ENDS_K)}
    found = flashsmith.flash_attention(*tensors, causal=True, backend=backend, **ends)
    require_right(found.numpy(), arrays, True)


def test_torch_compile_traces_it_without_a_break(arrays):
    tensors = [torch.from_numpy(x) for x in (*arrays, ENDS_Q, ENDS_K)]

    def model(*given):
        return flashsmith.flash_attn_varlen_func(*given, 60, 60, causal=True) * 2

    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(*tensors), model(*tensors))


# Gradients


def leaves(arrays):
    return [torch.from_numpy(x).requires_grad_() for x in arrays]


def gradients_alone(arrays, do, dtype=torch.float64):
    """Of the definition, sequence by sequence; the mask is causal."""
    q, k, v = (x.detach().to(dtype).requires_grad_() for x in leaves(arrays))
    for i in range(len(ENDS_Q) - 1):
        rows, keys = slice(*ENDS_Q[i : i + 2]), slice(*ENDS_K[i : i + 2])
        n, m = ENDS_Q[i + 1] - ENDS_Q[i], ENDS_K[i + 1] - ENDS_K[i]
        if not n or not m:
            continue
        seen = torch.from_numpy(np.tri(n, m, m - n, dtype=bool))
        wide = [x[keys].repeat_interleave(2, 1).transpose(0, 1) for x in (k, v)]
        scores = q[rows].transpose(0, 1) @ wide[0].transpose(1, 2) / 8.0
        weights = scores.masked_fill(~seen, -torch.inf).softmax(-1).nan_to_num(0.0)
        (weights @ wide[1]).backward(do[rows].to(dtype).transpose(0, 1))
    return [x.grad for x in (q, k, v)]


def require_near(found, arrays, do):
    """At most twice as far from the exact gradients as those of torch in half precision."""
    truth, half = (gradients_alone(arrays, do, kind) for kind in (torch.float64, torch.float16))
    for one, exact, other in zip(found, truth, half, strict=True):
        assert (one.double() - exact).abs().max() <= 2 * (other.double() - exact).abs().max()


@pytest.mark.parametrize("backend", [None, "emulator"])
def test_autograd_follows_packed_sequences(arrays, backend):
    own, ends = leaves(arrays), [torch.from_numpy(x) for x in (ENDS_Q, ENDS_K)]
    do = torch.randn((90, 4, 64), generator=torch.Generator().manual_seed(3)).half()
    if backend is None:  # the drop-in, which takes no backend
        out = flashsmith.flash_attn_varlen_func(*own, *ends, 60, 60, causal=True)
    else:
        tables = dict(zip(("cu_seqlens_q", "cu_seqlens_k"), ends, strict=True))
        out = flashsmith.flash_attention(
            *own, causal=True, backend=backend, config=CONFIG, **tables
        )
    require_near(torch.autograd.grad(out, own, do), arrays, do)


def slopes_of_sinks(arrays, sinks, dtype):
    """The gradients of the sum of squares by the definition, sequence by sequence."""
    q, k, v = (x.detach().to(dtype) for x in leaves(arrays))
    own = sinks.detach().to(dtype).requires_grad_()
    for i in range(len(ENDS_Q) - 1):
        rows, keys = slice(*ENDS_Q[i : i + 2]), slice(*ENDS_K[i : i + 2])
        wide = [x[keys].repeat_interleave(2, 1).transpose(0, 1) for x in (k, v)]
        scores = q[rows].transpose(0, 1) @ wide[0].transpose(1, 2) / 8.0
        beside = own[:, None, None].expand(-1, scores.shape[1], 1)
        weights = torch.cat([scores, beside], -1).softmax(-1)[..., :-1]
        (weights @ wide[1]).float().pow(2).sum().backward()
    return own.grad.double()


def test_a_gradient_of_sinks_comes_beside_those_of_packed_rows(arrays):
    own, ends = leaves(arrays), [torch.from_numpy(x) for x in (ENDS_Q, ENDS_K)]
    tables = dict(zip(("cu_seqlens_q", "cu_seqlens_k"), ends, strict=True))
    sinks = torch.linspace(-1, 1, 4).requires_grad_()

    def total(sinks):
        out = flashsmith.flash_attention(*own, sinks=sinks, **tables)
        return out.float().pow(2).sum()

    (found,) = torch.autograd.grad(total(sinks), [sinks])
    truth, half = (slopes_of_sinks(arrays, sinks, kind) for kind in (torch.float64, torch.float16))
    assert (found.double() - truth).abs().max() <= 2 * (half - truth).abs().max()


def test_torch_compile_differentiates_them_without_a_break(arrays):
    ends = [torch.from_numpy(x) for x in (ENDS_Q, ENDS_K)]

    def model(q, k, v):
        return flashsmith.flash_attn_varlen_func(q, k, v, *ends, 60, 60, causal=True) * 2

    found = []
    for call in (model, torch.compile(model, fullgraph=True, backend="aot_eager")):
        own = leaves(arrays)
        found.append(torch.autograd.grad(call(*own).float().pow(2).sum(), own))
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_the_door_of_gradients_takes_packed_arrays_of_three_dimensions(arrays, library):
    do = np.random.default_rng(5).standard_normal((90, 4, 64)).astype(np.float16)
    tables = {"cu_seqlens_q": ENDS_Q, "cu_seqlens_k": ENDS_K, "causal": True}
    given = [do, *arrays]
    if library == "torch":
        given = [torch.from_numpy(x) for x in given]
        tables |= {n: torch.from_numpy(tables[n]) for n in ("cu_seqlens_q", "cu_seqlens_k")}
    tables["backend"] = "emulator"
    out, lse = flashsmith.flash_attention(*given[1:], return_lse=True, config=CONFIG, **tables)
    *found, choice = flashsmith.flash_attention_backward(*given, out, lse, explain=True, **tables)
    assert [x.shape for x in found] == [x.shape for x in arrays]
    assert choice.config.NAME == "sm90_backward"
    require_near([torch.as_tensor(x) for x in found], arrays, torch.from_numpy(do))


@pytest.mark.parametrize(
    ("tables", "says"),
    [
        ({"cu_seqlens_q": ENDS_Q}, "cu_seqlens_q is given without cu_seqlens_k"),
        ({"cu_seqlens_q": ENDS_Q, "cu_seqlens_k": ENDS_K[1:]}, "5 entries and cu_seqlens_k has 4"),
        ({"cu_seqlens_q": ENDS_Q[:1], "cu_seqlens_k": ENDS_K[:1]}, r"must be \(sequences \+ 1,\)"),
    ],
)
def test_boundaries_that_do_not_fit_each_other_are_refused(arrays, tables, says):
    with pytest.raises(ArgumentError, match=says):
        flashsmith.flash_attention(*arrays, **tables)


def test_boundaries_are_integers(arrays):
    wrong = {"cu_seqlens_q": ENDS_Q.astype(np.float32), "cu_seqlens_k": ENDS_K}
    with pytest.raises(ArgumentTypeError, match="cu_seqlens_q is float32; it must be int32"):
        flashsmith.flash_attention(*arrays, **wrong)


@pytest.mark.parametrize(
    ("wild", "says"),
    [
        ([0, 30, 20, 31, 90], r"cu_seqlens_q\[2\] is 20 and cu_seqlens_q\[1\] is 30"),
        ([0, 30, 30, 31, 91], r"cu_seqlens_q\[4\] is 91 and q has 90 rows"),
        ([-1, 30, 30, 31, 90], r"cu_seqlens_q\[0\] is -1 and q has 90 rows"),
    ],
)
def test_a_checked_call_names_the_boundary_that_is_wrong(arrays, wild, says, monkeypatch):
    ends = {"cu_seqlens_q": np.array(wild, np.int32), "cu_seqlens_k": ENDS_K}
    flashsmith.flash_attention(*arrays, config=CONFIG, **ends)  # clamped
    monkeypatch.setitem(settings._answers, settings.CHECK, True)
    with pytest.raises(ArgumentError, match=says):
        flashsmith.flash_attention(*arrays, config=CONFIG, **ends)


@pytest.mark.parametrize("kind", ["torch", "torch emulated", "numpy"])
def test_slopes_are_those_of_each_sequence(arrays, kind):
    """Each sequence beside others has what it has alone, with its own slopes."""
    slopes = np.random.default_rng(11).uniform(0, 0.5, (4, 4)).astype(np.float32)
    own, tables = leaves(arrays), {"cu_seqlens_q": ENDS_Q, "cu_seqlens_k": ENDS_K}
    given = [torch.from_numpy(x) for x in tables.values()]
    backend = "emulator" if "emulated" in kind else None
    if kind == "numpy":
        found = flashsmith.flash_attention(*arrays, causal=True, alibi_slopes=slopes, **tables)
        found, gradients = torch.from_numpy(found), []
    else:
        named = dict(zip(tables, given, strict=True))
        found = flashsmith.flash_attention(
            *own, causal=True, backend=backend, alibi_slopes=torch.from_numpy(slopes), **named
        )
        gradients = torch.autograd.grad(found.float().square().sum(), own)
    for i in (0, 3):  # the others have no row or no key
        rows, keys = slice(*ENDS_Q[i : i + 2]), slice(*ENDS_K[i : i + 2])
        parts = {"q": rows, "k": keys, "v": keys}
        cut = {n: x[None, at] for x, (n, at) in zip(own, parts.items(), strict=True)}
        shape = (1, 4, 2, cut["q"].shape[1], cut["k"].shape[1], 64, DType.FP16)
        problem = AttentionProblem(*shape, causal=True, alibi=True)
        cut["alibi_slopes"] = slopes[i : i + 1]
        require_expected(expected_of(problem, **cut), o=found[None, rows])
        if gradients:
            wanted = expected_gradients(problem, 2 * found[None, rows], **cut)
            for one, (name, at) in zip(gradients, parts.items(), strict=True):
                require_expected(wanted, **{f"d{name}": one[None, at]})
