"""Arrays of every library: read where they lie, never imported unless passed, said when copied."""

import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
import torch
from placed_arrays import Placement, placed_inputs

from flashsmith import FlashsmithWarning, flash_attention
from flashsmith.api import notices
from flashsmith.api.array_view import ArrayView
from flashsmith.api.arrays import library_of, origin
from flashsmith.api.arrays.dlpack import dlpack_view
from flashsmith.api.arrays.numpy_arrays import LIBRARY as NUMPY
from flashsmith.api.launches import tensor_arg
from flashsmith.base.dtypes import DType
from flashsmith.base.errors import ArgumentError
from flashsmith.check.cases import Case
from flashsmith.problem.attention import AttentionProblem
from flashsmith.torch_op.tensor_view import tensor_view


def test_the_package_imports_no_array_library_by_itself():
    """Nor does a call with NumPy arrays import one it was not given."""
    code = (
        "import sys, numpy as np, flashsmith\n"
        "def seen(): return [m for m in ('torch', 'cupy', 'jax', 'cuda') if m in sys.modules]\n"
        "assert not seen(), seen()\n"
        "q = np.zeros((1, 0, 1, 8), np.float16)\n"
        "flashsmith.flash_attention(q, q, q, backend='emulator')\n"
        "assert not seen(), seen()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_origin_is_the_library_whose_class_it_is():
    class Mine(np.ndarray):
        pass

    assert origin(np.zeros(1)) == "numpy"
    assert origin(np.zeros(1).view(Mine)) == "numpy"
    assert origin(torch.zeros(1)) == "torch"
    assert origin(torch.nn.Parameter(torch.zeros(1))) == "torch"
    assert origin([1.0]) == ""
    assert library_of(np.zeros(1), np.zeros(1), np.zeros(1)) is NUMPY


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.int8])
def test_dlpack_says_of_a_tensor_what_torch_says(dtype):
    tensor = torch.zeros(2, 6, 5, 16, dtype=dtype)[:, 1:4].transpose(1, 2)
    assert dlpack_view("q", tensor.__dlpack__()) == tensor_view("q", tensor)


def test_dlpack_says_of_an_array_what_numpy_says():
    array = np.zeros((2, 6, 5, 16), np.float16)[:, ::2]
    assert dlpack_view("q", array.__dlpack__()) == NUMPY.view("q", array)


def test_dlpack_without_strides_is_contiguous():
    view = dlpack_view("q", np.zeros((3, 4), np.float16).__dlpack__())
    assert view.strides == (4, 1)
    assert dlpack_view("q", np.zeros((), np.float16).__dlpack__()).strides == ()


def view(shape=(2, 70, 3, 64), strides=(13440, 192, 64, 1), address=256):
    return ArrayView("q", shape, strides, "float16", address, "cpu")


@pytest.mark.parametrize(
    ("seen", "says"),
    [
        (view(), ""),
        (view(strides=(13440, 64, 4480, 1)), ""),
        (view(strides=(0, 192, 64, 1)), ""),
        (view(shape=(1, 70, 3, 64), strides=(7, 192, 64, 1)), ""),
        (view(shape=(0, 70, 3, 64), strides=(7, 7, 7, 7), address=1), ""),
        (view(strides=(13440, 192, 1, 3)), "its last dimension is not contiguous"),
        (view(strides=(13440, -192, 64, 1)), "it has a negative stride"),
        (view(strides=(13440, 196, 64, 1)), "its rows do not begin at multiples of 16 bytes"),
        (view(address=258), "it does not begin at a multiple of 16 bytes"),
    ],
)
def test_only_what_no_kernel_can_read_is_an_obstacle(seen, says):
    assert seen.obstacle() == says


def test_strides_of_single_elements_mean_nothing():
    arg = tensor_arg(view(shape=(1, 70, 1, 64), strides=(5, 192, 3, 1)), "bshd")
    assert (arg.batch_stride, arg.seq_stride, arg.head_stride) == (8, 192, 8)


def test_layout_decides_which_stride_is_which():
    arg = tensor_arg(view(strides=(13440, 4480, 64, 1)), "bhsd")
    assert (arg.batch_stride, arg.seq_stride, arg.head_stride) == (13440, 64, 4480)


def test_strides_past_2_to_the_31_are_kept():
    arg = tensor_arg(view(strides=(2**40, 2**33, 64, 1)), "bshd")
    assert (arg.batch_stride, arg.seq_stride) == (2**40, 2**33)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_numpy_comes_back_as_numpy(dtype):
    q = np.zeros((1, 0, 1, 8), dtype)
    out, lse = flash_attention(q, q, q, return_lse=True, backend="emulator")
    assert (type(out), out.dtype) == (np.ndarray, q.dtype)
    assert (type(lse), lse.dtype) == (np.ndarray, np.float32)


def test_torch_on_the_cpu_goes_to_torch_and_is_said_once():
    notices.forget()
    random = torch.Generator().manual_seed(0)
    q = torch.randn(2, 70, 3, 64, dtype=torch.bfloat16, generator=random)
    with pytest.warns(FlashsmithWarning, match="calls torch's own attention") as said:
        results = [flash_attention(q, q, q, explain=True) for _ in range(3)]
    assert len(said) == 1
    assert said[0].filename == __file__
    out, choice = results[0]
    heads_first = q.transpose(1, 2)
    truth = torch.nn.functional.scaled_dot_product_attention(*[heads_first] * 3).transpose(1, 2)
    assert torch.equal(out, truth)
    assert choice.source == "torch"


@pytest.mark.gpu
@pytest.mark.parametrize(
    "placement", [Placement("bsdh"), Placement(row_gap=3), Placement(start=5)], ids=str
)
def test_a_copy_on_a_gpu_is_said_once(placement):
    notices.forget()
    case = Case("copied", AttentionProblem(1, 3, 3, 70, 203, 64, DType.FP16))
    q = placed_inputs(case, placement, "bshd")[0].torch(DType.FP16, "cuda")
    k, v = (x.torch(DType.FP16, "cuda") for x in placed_inputs(case, Placement(), "bshd")[1:])
    with pytest.warns(FlashsmithWarning, match="flashsmith copies q before each call") as said:
        [flash_attention(q, k, v) for _ in range(3)]
    assert len(said) == 1


@pytest.mark.gpu
def test_cupy_arrays_come_back_as_cupy():
    cupy = pytest.importorskip("cupy")
    rng = np.random.default_rng(0)
    host = [rng.standard_normal((2, 70, 3, 64)).astype(np.float16) for _ in range(3)]
    with cupy.cuda.Stream(non_blocking=True):
        arrays = [cupy.asarray(x) for x in host]
        out, lse = flash_attention(*arrays, causal=True, return_lse=True)
        assert type(out) is cupy.ndarray
        assert type(lse) is cupy.ndarray
        seen = cupy.asnumpy(out)
    expected, _ = flash_attention(*host, causal=True, return_lse=True, backend="cuda")
    assert np.array_equal(seen, expected)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_jax_arrays_come_back_as_jax(dtype):
    jax = pytest.importorskip("jax")
    if jax.default_backend() != "gpu":
        pytest.skip("JAX sees no GPU")
    keys = jax.random.split(jax.random.key(0), 3)
    arrays = [jax.random.normal(key, (2, 70, 3, 64), dtype) for key in keys]
    out, lse = flash_attention(*arrays, causal=True, return_lse=True)
    assert isinstance(out, jax.Array)
    assert isinstance(lse, jax.Array)
    host = [np.asarray(x) for x in arrays]
    expected, _ = flash_attention(*host, causal=True, return_lse=True, backend="cuda")
    assert np.array_equal(np.asarray(out).view(np.uint16), expected.view(np.uint16))


def test_jax_on_the_cpu_is_computed():
    jax = pytest.importorskip("jax")
    with jax.default_device(jax.devices("cpu")[0]):
        q = jax.numpy.zeros((1, 0, 3, 64), "bfloat16")
        out = flash_attention(q, q, q, backend="emulator")
        assert isinstance(out, jax.Array)
        assert out.dtype == q.dtype
        with pytest.raises(ArgumentError, match="cannot be written to"):
            flash_attention(q, q, q, out=q)


def test_a_first_call_imports_neither_masked_arrays_nor_sqlite():
    """They take as long to import as all the rest of a first call with a warm cache."""
    code = (
        "import sys, numpy as np, flashsmith\n"
        "from flashsmith.tuner.choose.measured import choosable, SHIPPED_FOLDER\n"
        "assert choosable(SHIPPED_FOLDER / 'nvidia_h200.jsonl')\n"
        "q = np.zeros((1, 0, 1, 8), np.float16)\n"
        "flashsmith.flash_attention(q, q, q, backend='emulator')\n"
        "seen = [m for m in ('numpy.ma', 'sqlite3') if m in sys.modules]\n"
        "assert not seen, seen\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
