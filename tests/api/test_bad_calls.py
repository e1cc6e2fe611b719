"""Every bad call gets one sentence that says what was given, what is allowed and what to do."""

import ml_dtypes
import numpy as np
import pytest
import torch

import flashsmith
from flashsmith import flash_attention, flash_attn_func, scaled_dot_product_attention
from flashsmith.base.errors import ArgumentError, ArgumentTypeError, ConfigError, Unsupported
from flashsmith.runtime.devices import has_cuda

BSHD = "(batch, sequence, heads, d_head)"
BHSD = "(batch, heads, sequence, d_head)"
SMALL = "(FP16, 64, 64, 64, 4): async+eager+swizzled+load_0_2_2_tiles+opt_softmax"
HALF = "(FP16, 128, 64, 64, 4): async+eager+swizzled+load_0_2_2_tiles+opt_softmax"
BRAIN = SMALL.replace("FP16", "BF16")
UNBUILDABLE = "(FP16, 64, 64, 64, 8): async+load_0_0_0_tiles"


def array(*shape, dtype=np.float16):
    return np.zeros(shape or (2, 70, 3, 64), dtype)


def tensor(*shape, dtype=torch.float16):
    return torch.zeros(shape or (2, 70, 3, 64), dtype=dtype)


def call(q=None, k=None, v=None, **options):
    q = array() if q is None else q
    k = q if k is None else k
    return flash_attention(q, k, k if v is None else v, **options)


def torch_call(q=None, **options):
    return call(tensor() if q is None else q, **options)


def read_only():
    out = array()
    out.flags.writeable = False
    return out


# name: (call, class, message)
BAD_CALLS = {
    "a list": (
        lambda: call([[1.0]]),
        ArgumentTypeError,
        "q is of type list; pass an array of NumPy, torch, CuPy or JAX (each has from_dlpack).",
    ),
    "a NumPy scalar": (
        lambda: call(np.float16(1)),
        ArgumentTypeError,
        "q is of type float16; pass a plain numpy.ndarray.",
    ),
    "a masked array": (
        lambda: call(np.ma.masked_array(array())),
        ArgumentTypeError,
        "q is of type MaskedArray; pass a plain numpy.ndarray.",
    ),
    "the other byte order": (
        lambda: call(array(dtype=">f2")),
        ArgumentTypeError,
        "q is >f2, of the other byte order; convert it with astype(dtype.newbyteorder('=')).",
    ),
    "NumPy and torch": (
        lambda: call(array(), tensor()),
        ArgumentTypeError,
        "q comes from NumPy and k from torch; pass arrays of one library.",
    ),
    "torch and NumPy": (
        lambda: call(tensor(), array()),
        ArgumentTypeError,
        "q is a torch tensor and k is of type ndarray; pass torch tensors for all.",
    ),
    "float32": (
        lambda: call(array(dtype=np.float32)),
        ArgumentTypeError,
        "q is float32; the kernels take float16 and bfloat16; convert q, k and v first (load a "
        "torch model with dtype=torch.bfloat16, or call it under torch.autocast).",
    ),
    "float64 tensors": (
        lambda: torch_call(tensor(dtype=torch.float64)),
        ArgumentTypeError,
        "q is float64; the kernels take float16 and bfloat16; convert q, k and v first.",
    ),
    "two types": (
        lambda: call(array(), array(dtype=ml_dtypes.bfloat16)),
        ArgumentTypeError,
        "q is float16 and k is bfloat16; convert them to one type.",
    ),
    "three dimensions": (
        lambda: call(array(70, 3, 64)),
        ArgumentError,
        f"q has 3 dimensions, shape (70, 3, 64); layout 'bshd' has four, {BSHD}; add the missing "
        f"ones with [None].",
    ),
    "five dimensions of v": (
        lambda: call(array(), array(), array(1, 2, 70, 3, 64), layout="bhsd"),
        ArgumentError,
        f"v has 5 dimensions, shape (1, 2, 70, 3, 64); layout 'bhsd' has four, {BHSD}; add the "
        f"missing ones with [None].",
    ),
    "two batches": (
        lambda: call(array(), array(1, 70, 3, 64)),
        ArgumentError,
        "q has batch 2 and k has 1; they must be equal.",
    ),
    "two key lengths": (
        lambda: call(array(), array(2, 90, 3, 64), array(2, 80, 3, 64)),
        ArgumentError,
        "k has 90 keys and v has 80 values; they must be equal.",
    ),
    "two numbers of KV heads": (
        lambda: call(array(), array(2, 90, 3, 64), array(2, 90, 1, 64)),
        ArgumentError,
        "k has 3 heads and v has 1; they must be equal.",
    ),
    "two widths": (
        lambda: call(array(), array(2, 90, 3, 32)),
        ArgumentError,
        "q has d_head 64 and k has 32; they must be equal.",
    ),
    "a wider v": (
        lambda: torch.ops.flashsmith.forward(*[tensor(2, 70, 3, 64)] * 2, tensor(2, 70, 3, 72)),
        Unsupported,
        "q has d_head 64 and v has 72; the kernels need one d_head; pad the smaller one with "
        "zeros.",
    ),
    "heads that do not divide": (
        lambda: call(array(), array(2, 90, 2, 64)),
        ArgumentError,
        "q has 3 heads and k has 2; the heads of q must be a multiple of those of k.",
    ),
    "no KV heads": (
        lambda: call(array(), array(2, 90, 0, 64)),
        ArgumentError,
        "q has 3 heads and k has 0; the heads of q must be a multiple of those of k.",
    ),
    "an odd width": (
        lambda: torch.ops.flashsmith.forward(*[tensor(2, 70, 3, 60)] * 3),
        Unsupported,
        "d_head is 60; the kernels take multiples of 8 up to 512; call flash_attention, which "
        "pads.",
    ),
    "a large width": (
        lambda: torch_call(tensor(2, 70, 3, 520)),
        Unsupported,
        "d_head is 520; the kernels take multiples of 8 up to 512; tiles of 1,024 columns would "
        "take 212,992 bytes of shared memory, of which a block has 166,912 on sm_80 and 232,448 "
        "on sm_90a; use another implementation.",
    ),
    "an unknown layout": (
        lambda: call(layout="sbhd"),
        ArgumentError,
        f"layout is 'sbhd'; it must be 'bshd' {BSHD} or 'bhsd' {BHSD}.",
    ),
    "a negative scale": (
        lambda: call(scale=-0.5),
        ArgumentError,
        "scale is -0.5; it must be a finite number above 0 or None (negate or scale q instead).",
    ),
    "scale 0": (
        lambda: torch_call(scale=0),
        ArgumentError,
        "scale is 0; it must be a finite number above 0 or None (negate or scale q instead).",
    ),
    "a scale that no float holds": (
        lambda: call(scale=10**400),
        ValueError,
        "scale is an integer of 1,329 bits; kernels take it as float32, from 1.175e-38 to "
        "3.403e+38; negate or scale q instead.",
    ),
    "scale NaN": (
        lambda: call(scale=float("nan")),
        ArgumentError,
        "scale is nan; it must be a finite number above 0 or None (negate or scale q instead).",
    ),
    "an infinite scale": (
        lambda: call(scale=np.inf),
        ArgumentError,
        "scale is inf; it must be a finite number above 0 or None (negate or scale q instead).",
    ),
    "scale as text": (
        lambda: call(scale="0.5"),
        ArgumentTypeError,
        "scale is '0.5'; it must be a finite number above 0 or None (negate or scale q instead).",
    ),
    "scale as truth": (
        lambda: call(scale=True),
        ArgumentTypeError,
        "scale is True; it must be a finite number above 0 or None (negate or scale q instead).",
    ),
    "causal as number": (
        lambda: call(causal=1),
        ArgumentTypeError,
        "causal is 1; it must be True or False.",
    ),
    "return_lse as text": (
        lambda: call(return_lse="yes"),
        ArgumentTypeError,
        "return_lse is 'yes'; it must be True or False.",
    ),
    "explain as None": (
        lambda: call(explain=None),
        ArgumentTypeError,
        "explain is None; it must be True or False.",
    ),
    "an unknown backend": (
        lambda: call(backend="gpu"),
        ArgumentError,
        "backend is 'gpu'; it must be None, 'cuda' or 'emulator'.",
    ),
    "the GPU for CPU tensors": (
        lambda: torch_call(backend="cuda"),
        ArgumentError,
        "backend is 'cuda' and q is on the CPU; move q, k and v to the GPU with .cuda().",
    ),
    "a configuration for torch on the CPU": (
        lambda: torch_call(config=SMALL),
        ArgumentError,
        "config is given and q is on the CPU, where torch's own attention runs; pass "
        "backend='emulator' or move q, k and v to a GPU.",
    ),
    "a configuration as number": (
        lambda: call(config=7),
        ArgumentTypeError,
        "config is of type int; it must be a kernel configuration, its short form, or None.",
    ),
    "a configuration of another type": (
        lambda: call(config=BRAIN, backend="emulator"),
        ArgumentError,
        f"{BRAIN}: the problem is FP16; give tensors of BF16 or another configuration.",
    ),
    "a configuration that is too narrow": (
        lambda: call(array(2, 70, 3, 128), config=SMALL, backend="emulator"),
        Unsupported,
        f"{SMALL}: d_head is 128; this kernel takes multiples of 8 up to 64.",
    ),
    "a configuration that cannot be built": (
        lambda: call(config=UNBUILDABLE, backend="emulator"),
        Unsupported,
        f"{UNBUILDABLE}: mma.sync works on 16 rows of Q and 8 warps at B_r 64 leave 8 to each; use "
        f"4 warps or B_r 128.",
    ),
    "out of another shape": (
        lambda: call(out=array(2, 70, 3, 32)),
        ArgumentError,
        "out has shape (2, 70, 3, 32) and q (2, 70, 3, 64); they must be equal.",
    ),
    "out of another type": (
        lambda: call(out=array(dtype=ml_dtypes.bfloat16)),
        ArgumentTypeError,
        "out is bfloat16 and q is float16; they must be equal.",
    ),
    "out of another library": (
        lambda: call(out=tensor()),
        ArgumentTypeError,
        "q comes from NumPy and out from torch; pass arrays of one library.",
    ),
    "out that cannot be written": (
        lambda: call(out=read_only()),
        ArgumentError,
        "out is read-only; pass an array that can be written.",
    ),
    "out that is q": (
        lambda: call(q := array(), out=q),
        ArgumentError,
        "out overlaps q in memory, which is still read while out is written; pass memory of its "
        "own.",
    ),
    "an expanded out": (
        lambda: torch_call(out=tensor(1, 70, 3, 64).expand(2, 70, 3, 64)),
        ArgumentError,
        "out has a stride of 0 (it is expanded); pass memory of its own.",
    ),
    "a transposed out": (
        lambda: torch_call(out=tensor(2, 70, 64, 3).transpose(2, 3)),
        ArgumentError,
        "out cannot be written in place: its last dimension is not contiguous; pass a contiguous "
        "one.",
    ),
    "out and a gradient": (
        lambda: torch_call(tensor().requires_grad_(), out=tensor()),
        Unsupported,
        "out is given and q requires a gradient; autograd cannot follow a result into out; do not "
        "pass out, or call under torch.no_grad().",
    ),
    "a gradient at the operator": (
        lambda: torch.ops.flashsmith.forward(tensor(), tensor().requires_grad_(), tensor()),
        Unsupported,
        "k requires a gradient and this operator keeps no log-sum-exp for it; call "
        "flash_attention or torch.ops.flashsmith.forward_lse, or use torch.no_grad().",
    ),
    "a sparse tensor": (
        lambda: torch_call(tensor().to_sparse()),
        Unsupported,
        "q is a sparse tensor or nested in the strided layout; flashsmith takes dense ones, and "
        "nested ones of layout torch.jagged.",
    ),
    "flash_attn_func with dropout": (
        lambda: flash_attn_func(array(), array(), array(), 0.1),
        Unsupported,
        "dropout_p is 0.1; flashsmith does not support dropout yet; pass 0.0.",
    ),
    "flash_attn_func with a window": (
        lambda: flash_attn_func(array(), array(), array(), window_size=128),
        ArgumentTypeError,
        "window_size is 128; it must be a pair, keys to the left and keys to the right; -1 or None "
        "for all.",
    ),
    "flash_attn_func with softcap": (
        lambda: flash_attn_func(array(), array(), array(), softcap=-30.0),
        ArgumentError,
        "softcap is -30; it must be a finite number above 0 or None.",
    ),
    "flash_attn_func with ALiBi": (
        lambda: flash_attn_func(array(), array(), array(), alibi_slopes=np.ones(77)),
        ArgumentError,
        "alibi_slopes has shape (2, 77); it must be (2, 3): (batch, heads).",
    ),
    "a window of one number": (
        lambda: call(window=5),
        ArgumentTypeError,
        "window is 5; it must be a pair, keys to the left and keys to the right; -1 or None for "
        "all.",
    ),
    "a window that begins behind its row": (
        lambda: call(window=(-3, 0)),
        ArgumentError,
        "window_left is -3; it must be an integer of at least 0 or None.",
    ),
    "sinks of another number of heads": (
        lambda: call(sinks=np.ones(7, np.float32)),
        ArgumentError,
        "sinks has shape (7,); it must be (3,): (heads).",
    ),
    "sinks that are integers": (
        lambda: call(sinks=np.ones(3, np.int32)),
        ArgumentTypeError,
        "sinks is int32; it must be float32.",
    ),
    "flash_attn_func with a negative scale": (
        lambda: flash_attn_func(array(), array(), array(), softmax_scale=-1.0),
        ArgumentError,
        "softmax_scale is -1; it must be a finite number above 0 or None (negate or scale q "
        "instead).",
    ),
    "SDPA with a mask of another shape": (
        lambda: scaled_dot_product_attention(tensor(), tensor(), tensor(), torch.ones(70, 4)),
        ArgumentError,
        "bias (attn_mask) has shape (70, 4); it must be broadcastable to (2, 70, 3, 3): (batch, "
        "heads, queries, keys).",
    ),
    "SDPA with a mask and a diagonal": (
        lambda: scaled_dot_product_attention(
            tensor(), tensor(), tensor(), torch.ones(3, 3), is_causal=True
        ),
        ArgumentError,
        "attn_mask and is_causal are both given; drop one of them.",
    ),
    "a bias of five dimensions": (
        lambda: call(bias=np.ones((1, 1, 1, 70, 70), np.bool_)),
        ArgumentError,
        "bias (attn_mask) has shape (1, 1, 1, 70, 70); it must be broadcastable to (2, 3, 70, 70): "
        "(batch, heads, queries, keys).",
    ),
    "a bias of integers": (
        lambda: call(bias=np.ones((70, 70), np.int64)),
        ArgumentTypeError,
        "bias (attn_mask) is int64; it must be bool (True: the row sees the key), float32, or of "
        "the type of q; convert it.",
    ),
    "a bias of another 16-bit type": (
        lambda: torch_call(bias=torch.ones(70, 70, dtype=torch.bfloat16)),
        ArgumentTypeError,
        "bias (attn_mask) is bfloat16; it must be bool (True: the row sees the key), float32, or "
        "of the type of q; convert it.",
    ),
    "a bias that is an array beside tensors": (
        lambda: torch_call(bias=np.ones((70, 70), np.bool_)),
        ArgumentTypeError,
        "q is a torch tensor and bias is of type ndarray; pass torch tensors for all.",
    ),
    "a bias of packed sequences": (
        lambda: call(
            *(array(1, 70, 3, 64) for _ in "qkv"),
            bias=np.ones((70, 70), np.bool_),
            cu_seqlens_q=np.array([0, 70], np.int32),
            cu_seqlens_k=np.array([0, 70], np.int32),
        ),
        Unsupported,
        "bias and sequences are both given; no kernel computes them together yet; unpack the "
        "sequences.",
    ),
    "a bias and lengths of keys": (
        lambda: call(bias=np.ones(70, np.bool_), k_lengths=np.array([70, 7], np.int32)),
        Unsupported,
        "bias and k_lengths are both given; no kernel computes them together yet; hide the keys "
        "behind a sequence's end in the bias.",
    ),
    "SDPA with dropout": (
        lambda: scaled_dot_product_attention(tensor(), tensor(), tensor(), dropout_p=0.5),
        Unsupported,
        "dropout_p is 0.5; flashsmith does not support dropout yet; pass 0.0.",
    ),
    "SDPA with shared heads unsaid": (
        lambda: scaled_dot_product_attention(tensor(2, 6, 70, 64), tensor(), tensor()),
        ArgumentError,
        "query, key and value have 6, 70 and 70 heads; pass enable_gqa=True to share those of key "
        "and value.",
    ),
    "SDPA with is_causal as text": (
        lambda: scaled_dot_product_attention(tensor(), tensor(), tensor(), is_causal="left"),
        ArgumentTypeError,
        "is_causal is 'left'; it must be True or False.",
    ),
}


@pytest.mark.parametrize("name", BAD_CALLS)
def test_a_bad_call_is_refused_with_its_sentence(name):
    bad_call, kind, message = BAD_CALLS[name]
    with pytest.raises(kind) as caught:
        bad_call()
    assert str(caught.value) == message
    assert isinstance(caught.value, ValueError | TypeError)
    assert isinstance(caught.value, flashsmith.base.errors.FlashsmithError)


def test_there_are_many_bad_calls():
    assert len(BAD_CALLS) >= 30


def test_a_misspelt_configuration_names_the_flag():
    with pytest.raises(ConfigError, match="swizled"):
        call(config=SMALL.replace("swizzled", "swizled"), backend="emulator")


@pytest.mark.skipif(has_cuda(), reason="this machine has a GPU")
def test_the_gpu_is_refused_by_name_where_there_is_none():
    with pytest.raises(ArgumentError) as caught:
        call(backend="cuda")
    assert str(caught.value) == (
        "backend is 'cuda' and this machine has no CUDA GPU; pass 'emulator' or None."
    )


@pytest.mark.gpu
def test_the_emulator_is_refused_for_tensors_on_a_gpu():
    with pytest.raises(ArgumentError, match="backend is 'emulator' and q is on cuda:0; copy"):
        torch_call(tensor().cuda(), backend="emulator")


@pytest.mark.gpu
def test_two_devices_are_refused():
    with pytest.raises(ArgumentError, match="q is on cuda:0 and k on cpu; put them on one device"):
        call(tensor().cuda(), tensor())


LATENT = (array(1, 70, 2, 576), array(1, 90, 1, 576), array(1, 90, 1, 512))
ENDS = [np.array([0, n], np.int32) for n in (70, 90)]
DOORS = {
    "flash_attention": lambda q, k, v: flashsmith.flash_attention(q, k, v),
    "flash_attn_func": lambda q, k, v: flashsmith.flash_attn_func(q, k, v),
    "kvcache": lambda q, k, v: flashsmith.flash_attn_with_kvcache(q, k, v),
    "varlen": lambda q, k, v: flashsmith.flash_attn_varlen_func(q[0], k[0], v[0], *ENDS, 70, 90),
    "sdpa": lambda *qkv: flashsmith.scaled_dot_product_attention(
        *(torch.from_numpy(x).transpose(1, 2) for x in qkv), enable_gqa=True
    ),
}


@pytest.mark.parametrize("door", DOORS)
def test_latent_attention_is_refused_with_what_it_would_need(door):
    says = (
        "q has d_head 576 and v has 512; .* 352,256 bytes of shared memory, .* expand the latents"
    )
    with pytest.raises(Unsupported, match=says):
        DOORS[door](*LATENT)
