"""flash_attention is right for every shape, stride, layout, type, head ratio and mask."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from placed_arrays import Placement, place, placed_inputs, require_right

from flashsmith import FlashsmithWarning, flash_attention
from flashsmith.api import notices
from flashsmith.api.attention import attend
from flashsmith.api.options import checked_options
from flashsmith.base.dtypes import DType
from flashsmith.base.errors import Unsupported
from flashsmith.check.cases import Case, inputs_of
from flashsmith.compile import compiler
from flashsmith.problem.attention import AttentionProblem
from flashsmith.tuner.choose.choice import Rejected

EXAMPLES = 24
PLACEMENTS = st.sampled_from(
    [
        Placement(),
        Placement("bhsd"),
        Placement("sbhd", start=8),
        Placement(row_gap=16, skip=2),  # packed QKV views, every second row
        Placement("bhsd", row_gap=8, start=24),
        Placement("bsdh"),
        Placement(row_gap=3),
        Placement(start=5),
    ]
)


# How far causal masks reach: to the last key, or from the first one (torch's).
MASKS = {"full": (False, None), "causal": (True, None), "top left": (True, 0)}


@st.composite
def cases(draw, lengths, widths, shared, heads):
    kv_heads = draw(st.sampled_from(heads))
    causal, diagonal = MASKS[draw(st.sampled_from(list(MASKS)))]
    problem = AttentionProblem(
        batch=draw(st.sampled_from([1, 2])),
        heads=kv_heads * draw(st.sampled_from(shared)),
        kv_heads=kv_heads,
        q_len=draw(lengths),
        k_len=draw(lengths),
        d_head=draw(widths),
        dtype=draw(st.sampled_from(DType)),
        causal=causal,
        diagonal=diagonal,
        scale=draw(st.sampled_from([None, 0.3])),
    )
    return Case("property", problem)


# The emulator is slow: few lengths, each of a kind of its own. A GPU takes any, as long as the
# truth of a case, which the host computes, takes less than a second.
MOST_PRODUCTS = 1e8


def products(case):
    problem = case.problem
    return problem.batch * problem.heads * problem.q_len * problem.k_len * problem.d_head


FEW = cases(
    lengths=st.sampled_from([1, 17, 64, 130, 203]),
    widths=st.sampled_from([8, 40, 64, 64, 96, 128]),
    shared=[1, 3],
    heads=[1, 2],
)
ANY = cases(
    lengths=st.one_of(st.sampled_from([1, 64, 192, 512]), st.integers(1, 700)),
    widths=st.one_of(st.sampled_from([64, 128, 256]), st.integers(1, 32).map(lambda n: 8 * n)),
    shared=[1, 2, 3, 8],
    heads=[1, 2, 5],
).filter(lambda case: products(case) <= MOST_PRODUCTS)


def body(case, placements, layout, lse, to_array, backend):
    """Computes attention of arrays that `to_array` makes, and holds the result to the truth."""
    problem = case.problem
    inputs = zip(inputs_of(case).values(), placements, strict=True)
    placed = [place(bits, placement, layout) for bits, placement in inputs]
    before = [item.memory.copy() for item in placed]
    arrays = [to_array(item, problem.dtype) for item in placed]
    options = checked_options(
        causal=problem.causal,
        scale=problem.scale,
        layout=layout,
        return_lse=lse,
        config=None,
        backend=backend,
        diagonal=problem.diagonal,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FlashsmithWarning)  # of copies, tested elsewhere
        result = attend(*arrays, options)
    out, values = result if lse else (result, None)
    assert type(out) is type(arrays[0])
    assert out.dtype == arrays[0].dtype
    assert out.shape == arrays[0].shape
    require_right(case, layout, as_numpy(out), None if values is None else as_numpy(values))
    for item, memory in zip(placed, before, strict=True):
        assert np.array_equal(item.memory, memory), "an input was written"


def as_numpy(array):
    return array.float().cpu().numpy() if isinstance(array, torch.Tensor) else array


SETTINGS = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)


def given_calls(strategy):
    """Cases of a strategy, with q, k and v lying in memory each in its own way."""
    return given(
        case=strategy,
        placements=st.tuples(PLACEMENTS, PLACEMENTS, PLACEMENTS),
        layout=st.sampled_from(["bshd", "bhsd"]),
        lse=st.booleans(),
    )


@SETTINGS
@given_calls(FEW)
def test_numpy_arrays_on_the_emulator(case, placements, layout, lse):
    body(case, placements, layout, lse, lambda item, dtype: item.numpy(dtype), "emulator")


@settings(SETTINGS, max_examples=12)
@given_calls(FEW)
def test_torch_tensors_on_the_emulator(case, placements, layout, lse):
    body(case, placements, layout, lse, lambda item, dtype: item.torch(dtype), "emulator")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DType)
@pytest.mark.parametrize("mask", MASKS)
@settings(SETTINGS, max_examples=25)
@given_calls(ANY)
def test_torch_tensors_on_a_gpu(dtype, mask, case, placements, layout, lse):
    causal, diagonal = MASKS[mask]
    problem = replace(case.problem, dtype=dtype, causal=causal, diagonal=diagonal)
    case = replace(case, problem=problem)
    body(case, placements, layout, lse, lambda item, dtype: item.torch(dtype, "cuda"), None)


@pytest.mark.gpu
@settings(SETTINGS, max_examples=25)
@given_calls(ANY)
def test_numpy_arrays_on_a_gpu(case, placements, layout, lse):
    body(case, placements, layout, lse, lambda item, dtype: item.numpy(dtype), "cuda")


RAGGED = Case("ragged", AttentionProblem(2, 3, 1, 70, 203, 64, DType.FP16, causal=True))


def arrays_of(case, placement=None, layout="bshd"):
    placed = placed_inputs(case, placement or Placement(), layout)
    return [item.numpy(case.problem.dtype) for item in placed]


def test_wide_heads_are_right():
    case = Case("wide", AttentionProblem(1, 3, 1, 33, 203, 256, DType.BF16))
    require_right(case, "bshd", flash_attention(*arrays_of(case), backend="emulator"))


def test_out_is_written_and_returned():
    arrays = arrays_of(RAGGED)
    out = place(inputs_of(RAGGED)["q"], Placement("bhsd", row_gap=8), "bshd").numpy(DType.FP16)
    assert flash_attention(*arrays, causal=True, out=out, backend="emulator") is out
    require_right(RAGGED, "bshd", out)


def test_packed_qkv_is_read_in_place():
    problem = AttentionProblem(1, 3, 3, 70, 70, 64, DType.FP16)
    case = Case("packed", problem)
    packed = np.stack([b.view(np.float16) for b in inputs_of(case).values()], axis=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        out = flash_attention(*(packed[:, :, i] for i in range(3)), backend="emulator")
    require_right(case, "bshd", out)


def test_a_batch_that_shares_keys_by_stride_0_is_right():
    q, k, v = arrays_of(RAGGED)
    k, v = (np.broadcast_to(x[:1], (2, *x.shape[1:])) for x in (k, v))
    out, choice = flash_attention(q, k, v, explain=True, backend="emulator")
    copied = flash_attention(q, k.copy(), v.copy(), config=choice.config, backend="emulator")
    assert np.array_equal(out, copied)


def test_reversed_rows_are_right():
    q, k, v = arrays_of(RAGGED)
    out = flash_attention(q[:, ::-1], k[:, ::-1], v[:, ::-1], backend="emulator")
    copies = [np.ascontiguousarray(x[:, ::-1]) for x in (q, k, v)]
    assert np.array_equal(out, flash_attention(*copies, backend="emulator"))


@pytest.mark.parametrize("shape", [(0, 70, 3, 64), (2, 0, 3, 64), (2, 70, 0, 64)])
def test_no_output_elements_need_no_launch(shape):
    q, k = np.zeros(shape, np.float16), np.zeros((shape[0], 9, shape[2], 64), np.float16)
    out, lse = flash_attention(q, k, k, return_lse=True, backend="emulator")
    assert out.shape == shape
    assert lse.shape == (shape[0], shape[2], shape[1])


@pytest.mark.parametrize("causal", [False, True])
def test_no_keys_give_0_and_minus_infinity(causal):
    q, k = np.ones((2, 70, 3, 64), np.float16), np.ones((2, 0, 1, 64), np.float16)
    out, lse, choice = flash_attention(
        q, k, k, causal=causal, return_lse=True, explain=True, backend="emulator"
    )
    assert np.array_equal(out, np.zeros_like(q))
    assert np.array_equal(lse, np.full((2, 3, 70), -np.inf, np.float32))
    assert choice.config is None
    assert choice.reason == "the output has no elements, or there are no keys"


def test_rows_that_see_no_key_are_0():
    case = Case("masked", AttentionProblem(1, 3, 3, 130, 64, 64, DType.BF16, causal=True))
    out, lse = flash_attention(*arrays_of(case), causal=True, return_lse=True, backend="emulator")
    require_right(case, "bshd", out, lse)
    assert not out[:, :66].astype(np.float32).any()
    assert np.isneginf(lse[:, :, :66]).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_nan_and_infinity_come_out_as_from_torch(name, bad):
    """The rows that torch makes NaN are NaN, and only those."""
    case = Case("not finite", AttentionProblem(1, 3, 3, 70, 203, 64, DType.FP16))
    arrays = dict(zip("qkv", (x.copy() for x in arrays_of(case)), strict=True))
    arrays[name][0, 20, 1, 7] = bad
    out = flash_attention(*arrays.values(), backend="emulator")
    tensors = [torch.from_numpy(x).float().transpose(1, 2) for x in arrays.values()]
    truth = torch.nn.functional.scaled_dot_product_attention(*tensors).transpose(1, 2).numpy()
    assert np.array_equal(np.isnan(out), np.isnan(truth))
    assert np.array_equal(np.isinf(out), np.isinf(truth))


def test_the_emulator_is_said_once(monkeypatch):
    monkeypatch.delenv("FLASHSMITH_DEVICE", raising=False)
    monkeypatch.setattr("flashsmith.runtime.devices.has_cuda", lambda: False)
    notices.forget()
    q = np.zeros((1, 5, 1, 8), np.float16)
    with pytest.warns(FlashsmithWarning, match="runs its kernels in the emulator") as said:
        [flash_attention(q, q, q) for _ in range(3)]
    assert len(said) == 1
    assert said[0].filename == __file__


@pytest.mark.parametrize("asked", ["argument", "setting"])
def test_an_emulator_that_was_asked_for_is_not_said(monkeypatch, asked):
    monkeypatch.setattr("flashsmith.runtime.devices.has_cuda", lambda: False)
    if asked == "setting":
        monkeypatch.setenv("FLASHSMITH_DEVICE", "emulator")
    notices.forget()
    q = np.zeros((1, 5, 1, 8), np.float16)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        flash_attention(q, q, q, backend="emulator" if asked == "argument" else None)


def test_a_configuration_given_is_used(monkeypatch):
    short = "(FP16, 64, 64, 32, 4): async+swizzled+load_2_2_2_tiles"
    out, choice = flash_attention(
        *arrays_of(RAGGED), causal=True, config=short, explain=True, backend="emulator"
    )
    require_right(RAGGED, "bshd", out)
    assert choice.config.short_form() == short
    assert choice.source == "given"
    assert str(choice) == f"{short}: given by the caller"


def test_explain_names_what_was_passed_over():
    _, lse, choice = flash_attention(
        *arrays_of(RAGGED), causal=True, return_lse=True, explain=True, backend="emulator"
    )
    assert lse.shape == (2, 3, 70)
    assert choice.source == "rule"
    assert choice.config.dtype is DType.FP16
    assert choice.rejected


def test_a_kernel_that_cannot_read_the_strides_is_passed_over(monkeypatch):
    """Or refused, where it was given."""
    arrays = arrays_of(Case("unreadable", AttentionProblem(1, 3, 1, 40, 203, 64, DType.FP16)))
    refused = flash_attention(*arrays, explain=True, backend="emulator")[1].config
    arrays = [x[:, 1:] for x in arrays]

    def require_readable(prepared, call):
        config = prepared.steps[0].launch.config
        if config == refused:
            raise Unsupported(f"{config.short_form()}: not these strides.")

    monkeypatch.setattr("flashsmith.api.launches._require_readable", require_readable)
    _, choice = flash_attention(*arrays, explain=True, backend="emulator")
    assert choice.config != refused
    assert Rejected(refused.short_form(), "not these strides.") in choice.rejected
    with pytest.raises(Unsupported, match="not these strides"):
        flash_attention(*arrays, config=refused, backend="emulator")


@pytest.mark.judged
def test_a_call_on_the_emulator_refuses_what_would_spill_on_a_gpu(monkeypatch):
    config = "hopper(FP16, 64, 1, 64): kv_2+q_1+regs_240_56"
    arrays = arrays_of(Case("spills", AttentionProblem(1, 3, 1, 70, 211, 64, DType.FP16)))

    def refusing(config, kernel):
        raise Unsupported(f"{config.short_form()}: ptxas spills 8 bytes.")

    with monkeypatch.context() as patch:
        patch.setattr(compiler, "_accepted", refusing)
        with pytest.raises(Unsupported, match="ptxas spills 8 bytes"):
            flash_attention(*arrays, config=config, backend="emulator")
        _, choice = flash_attention(*arrays, explain=True, backend="emulator")
        assert not choice.config.judges_builds()
        assert "ptxas spills 8 bytes." in [one.reason for one in choice.rejected]
    out = flash_attention(*arrays, config=config, backend="emulator")
    assert out.shape == arrays[0].shape


def test_a_warm_call_neither_compiles_nor_chooses(monkeypatch):
    arrays = arrays_of(RAGGED)
    first = flash_attention(*arrays, causal=True, backend="emulator")
    for name in (
        "flashsmith.api.launches.choose",
        "flashsmith.api.launches.prepare",
        "flashsmith.runtime.run.compile_kernel",
        "flashsmith.runtime.run.compile_ptx",
    ):
        monkeypatch.setattr(name, lambda *_, **__: pytest.fail("a warm call did cold work"))
    assert np.array_equal(first, flash_attention(*arrays, causal=True, backend="emulator"))
