"""What torch's users expect of a function beside torch's own."""

import subprocess
import sys
from importlib.resources import files

import numpy as np
import pytest
import torch
from placed_arrays import Placement, placed_inputs, require_right
from torch.nn.attention.bias import causal_lower_right, causal_upper_left

import flashsmith
from flashsmith import flash_attention, flash_attn_func, scaled_dot_product_attention
from flashsmith.api import attention
from flashsmith.base import settings
from flashsmith.base.dtypes import DType
from flashsmith.base.errors import ArgumentError, ArgumentTypeError, Unsupported
from flashsmith.check.cases import Case
from flashsmith.problem.attention import AttentionProblem

pytestmark = pytest.mark.filterwarnings("ignore::flashsmith.FlashsmithWarning")
CAUSAL = Case("manners", AttentionProblem(2, 3, 3, 70, 203, 64, DType.FP16, causal=True))
TOP_LEFT = Case("manners", AttentionProblem(2, 3, 3, 70, 203, 64, DType.FP16, True, 0))
ODD = Case("odd", AttentionProblem(1, 3, 1, 70, 101, 60, DType.FP16, causal=True))


def tensors_of(case, layout):
    placed = placed_inputs(case, Placement(), layout)
    return [item.torch(case.problem.dtype) for item in placed]


@pytest.mark.parametrize(("before", "there"), [("import torch", True), ("", False)])
def test_the_operators_are_there_after_the_import_beside_torch(before, there):
    """And torch is not imported by ours."""
    code = (
        f"{before}\nimport flashsmith, sys\n"
        "torch = sys.modules.get('torch')\n"
        "print(torch is not None and hasattr(torch.ops.flashsmith, 'forward'))\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == f"{there}\n"


def test_the_package_says_that_it_is_typed():
    assert (files(flashsmith) / "py.typed").is_file()


@pytest.mark.parametrize("drop_in", ["flash_attn_func", "scaled_dot_product_attention"])
def test_the_environment_brings_cpu_tensors_of_both_drop_ins_to_our_kernels(monkeypatch, drop_in):
    monkeypatch.setenv("FLASHSMITH_DEVICE", "emulator")
    layout = "bshd" if drop_in == "flash_attn_func" else "bhsd"
    tensors = tensors_of(CAUSAL, layout)
    out = getattr(flashsmith, drop_in)(*tensors)
    ours = flash_attention(*tensors, layout=layout, backend="emulator")
    monkeypatch.delenv("FLASHSMITH_DEVICE")
    theirs = getattr(flashsmith, drop_in)(*tensors)
    assert torch.equal(out, ours)
    assert not torch.equal(out, theirs)


def test_explain_names_our_kernel_where_the_environment_says_emulator(monkeypatch):
    monkeypatch.setenv("FLASHSMITH_DEVICE", "emulator")
    _, choice = flash_attention(*tensors_of(CAUSAL, "bshd"), explain=True)
    assert choice.config is not None


@pytest.mark.parametrize("library", ["numpy", "torch", "torch's own"])
def test_a_width_that_is_no_multiple_of_8_is_padded_inside(library):
    placed = placed_inputs(ODD, Placement(), "bshd")
    backend = None if library == "torch's own" else "emulator"
    arrays = [x.numpy(DType.FP16) if library == "numpy" else x.torch(DType.FP16) for x in placed]
    out, lse, choice = flash_attention(
        *arrays, causal=True, return_lse=True, backend=backend, explain=True
    )
    assert tuple(out.shape) == (1, 70, 3, 60)
    assert out.flags["C_CONTIGUOUS"] if library == "numpy" else out.is_contiguous()
    require_right(ODD, "bshd", out, lse)
    assert (choice.config is None) == (library == "torch's own")
    given, _ = flash_attention(
        *arrays, causal=True, scale=60**-0.5, return_lse=True, backend=backend
    )
    assert np.array_equal(np.asarray(given), np.asarray(out))


def test_a_padded_width_and_a_place_for_the_output_do_not_go_together():
    q, k, v = tensors_of(ODD, "bshd")
    with pytest.raises(Unsupported, match="out is given and d_head is 60, which flashsmith pads"):
        flash_attention(q, k, v, out=torch.empty_like(q))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_float32_under_autocast_is_cast_as_torch_casts_it(dtype):
    q, k, v = (x.float() for x in tensors_of(CAUSAL, "bhsd"))
    with torch.autocast("cpu", dtype):
        out = scaled_dot_product_attention(q, k, v)
        theirs = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    assert out.dtype == theirs.dtype == dtype
    assert torch.equal(out, scaled_dot_product_attention(q.to(dtype), k.to(dtype), v.to(dtype)))
    with pytest.raises(ArgumentTypeError, match=r"load a torch model with dtype=torch\.bfloat16"):
        scaled_dot_product_attention(q, k, v)


def test_what_is_computed_under_autocast_has_the_bits_that_it_has_outside():
    q, k, v = (x.transpose(1, 2).requires_grad_() for x in tensors_of(CAUSAL, "bhsd"))
    options = {"causal": True, "softcap": 5.0, "return_lse": True}
    for asked in (options, {"causal": True, "return_lse": True}):
        found = []
        for enabled in (False, True):
            with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
                rows = [x.to(torch.bfloat16) for x in (q, k, v)]
                out, lse = flashsmith.flash_attention(*rows, **asked)
                gradients = torch.autograd.grad(out.float().sum() + lse.sum(), (q, k, v))
            assert lse.dtype is torch.float32
            found.append((out, lse, *gradients))
        assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


@pytest.mark.parametrize(
    ("make", "case"), [(causal_lower_right, CAUSAL), (causal_upper_left, TOP_LEFT)]
)
def test_the_mask_objects_of_torch_are_what_they_say(make, case):
    q, k, v = tensors_of(case, "bhsd")
    require_right(case, "bhsd", scaled_dot_product_attention(q, k, v, attn_mask=make(70, 203)))
    with pytest.raises(ArgumentError, match="was made for 70 queries and 200 keys, and there are"):
        scaled_dot_product_attention(q, k, v, attn_mask=make(70, 200))
    with pytest.raises(ArgumentError, match="attn_mask and is_causal are both given"):
        scaled_dot_product_attention(q, k, v, attn_mask=make(70, 203), is_causal=True)


def test_a_name_that_nobody_has_is_an_attribute_error():
    assert not hasattr(flashsmith, "flash_attn_nonsense")


@pytest.mark.parametrize("fullgraph", [False, True])
@pytest.mark.parametrize("call", [flash_attention, flash_attn_func], ids=lambda f: f.__name__)
def test_what_is_refused_under_torch_compile_is_said_first(call, fullgraph):
    torch._dynamo.reset()
    compiled = torch.compile(call, backend="aot_eager", fullgraph=fullgraph)
    q = torch.zeros(1, 8, 2, 64)
    with pytest.raises(ArgumentTypeError, match=r"^q is float32; the kernels take float16"):
        compiled(q, q, q)
    with pytest.raises(ArgumentError, match=r"^q has 3 dimensions"):
        compiled(q[0].half(), q[0].half(), q[0].half())


HALF = torch.zeros(1, 8, 2, 64, dtype=torch.float16)
REFUSALS = {
    "flag": (flash_attention, {"causal": 3}, r"^causal is 3; it must be True or False"),
    "layout": (flash_attention, {"layout": "x"}, r"^layout is 'x'; it must be"),
    "unknown": (flash_attention, {"cusal": True}, r"^'cusal' is not .*; did you mean 'causal'\?"),
    "scale": (flash_attention, {"scale": -1.0, "return_lse": True}, r"^scale is -1; it must be"),
    "config": (flash_attention, {"config": 3, "explain": True}, r"^config is of type int"),
    "dropout": (flash_attn_func, {"dropout_p": 0.5, "return_attn_probs": True}, r"^dropout_p is"),
    "mask": (
        scaled_dot_product_attention,
        {"attn_mask": HALF, "is_causal": True},
        r"^attn_mask and is_causal are both given",
    ),
}


@pytest.mark.parametrize("refusal", REFUSALS)
def test_a_whole_graph_says_what_a_plain_call_says(refusal):
    """And nothing before it: torch's own page about tracing is not about the caller's mistake."""
    function, given, said = REFUSALS[refusal]

    def call(q):
        found = function(q, q, q, **given)
        return [t + 1 for t in found if t is not None] if isinstance(found, tuple) else found + 1

    kinds = (ArgumentError, ArgumentTypeError, Unsupported)
    torch._dynamo.reset()
    with pytest.raises(kinds, match=said):
        call(HALF)
    with pytest.raises(kinds, match=said):
        torch.compile(call, fullgraph=True, backend="aot_eager")(HALF)


def test_a_compiled_call_is_not_compiled_again_because_it_was_the_first(monkeypatch):
    monkeypatch.setattr(attention, "_torch_attend", None)  # as in a process that begins
    settings.checks_calls()
    q, k, v = tensors_of(CAUSAL, "bshd")
    compiled = torch.compile(
        lambda: flash_attention(q, k, v, causal=True), fullgraph=True, backend="eager"
    )
    with torch._dynamo.config.patch(error_on_recompile=True):
        assert torch.equal(compiled(), compiled())
