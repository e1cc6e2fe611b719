"""The cells of the Hopper comparison, and how each contender is called on a cell."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch.nn.attention import SDPBackend, sdpa_kernel

from flashsmith.base.dtypes import DType
from flashsmith.compile.compiler import CompileJob, compile_many
from flashsmith.config import get_kernel_configs
from flashsmith.config.kernel_config import KernelConfig
from flashsmith.config.traits import ForwardTraits
from flashsmith.problem.attention_problem import AttentionProblem
from flashsmith.runtime.cuda_device import CudaDevice
from flashsmith.runtime.forward import prepare_forward
from flashsmith.runtime.launch import plan
from flashsmith.runtime.launch.plan import ForwardCall, TensorArg
from flashsmith.tuner.choose import choose

TOKENS = 16384  # batch times length
WIDTH = 2048  # heads times d_head
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
CELLS = [(d, causal, n) for d in (64, 128, 256) for causal in (False, True) for n in LENGTHS]

PROTOTYPE_VARIANTS = {
    (64, False): ("192x128e0", "192x128e0r0"),
    (64, True): ("192x128e0", "192x128e0r0"),
    (128, False): ("128x128", "128x128p1", "192x80e0", "192x80e0k20"),
    (128, True): ("128x128", "128x128p1", "192x80e0"),
    (256, False): ("128x64", "128x64h", "128x64c2"),
    (256, True): ("128x64h", "128x64p1h"),
}
# Section in MB and factor of the short tiles that the prototype's own record has for causal cells.
PROTOTYPE_ORDER = {
    (64, 512): (4, 0),
    (64, 1024): (16, None),
    (64, 2048): (4, None),
    (64, 4096): (32, 1.5),
    (64, 8192): (32, 1.5),
    (64, 16384): (32, None),
    (128, 512): (16, 0),
    (128, 1024): (32, 0),
    (128, 2048): (16, None),
    (128, 4096): (32, None),
    (128, 8192): (64, None),
    (128, 16384): (32, None),
    (256, 512): (32, 0),
    (256, 1024): (4, None),
    (256, 2048): (16, 1.5),
    (256, 4096): (32, 1.5),
    (256, 8192): (32, 1.5),
    (256, 16384): (64, 1.5),
}

_DEVICE: list[CudaDevice] = []


@dataclass(frozen=True, slots=True)
class Tensors:
    """Q, K and V indexed (batch, row, head, d), whatever lies behind."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor


def device() -> CudaDevice:
    """The GPU, in the context torch uses."""
    if not _DEVICE:
        torch.zeros(1, device="cuda")
        _DEVICE.append(CudaDevice())
    return _DEVICE[0]


def make_tensors(
    d: int,
    length: int,
    *,
    dtype: torch.dtype = torch.bfloat16,
    group: int = 1,
    heads_first: bool = False,
    more_rows: int = 0,
) -> Tensors:
    """Normal numbers for a cell, or a variation of it."""
    heads, batch, rows = WIDTH // d, max(TOKENS // length, 1), length + more_rows

    def one(n: int) -> torch.Tensor:
        shape = (batch, n, rows, d) if heads_first else (batch, rows, n, d)
        made = torch.randn(shape, device="cuda", dtype=dtype)
        return made.transpose(1, 2) if heads_first else made

    return Tensors(one(heads), one(heads // group), one(heads // group))


def problem_of(t: Tensors, *, causal: bool, diagonal: int | None = None) -> AttentionProblem:
    """What the tensors ask for."""
    batch, rows, heads, d = t.q.shape
    dtype = DType.of(t.q.dtype)
    assert dtype is not None
    return AttentionProblem(
        batch, heads, t.k.shape[2], rows, t.k.shape[1], d, dtype, causal, diagonal
    )


def flops(t: Tensors, *, causal: bool) -> float:
    """4 B H Sq Sk D, halved when causal."""
    batch, rows, heads, d = t.q.shape
    return 4 * batch * heads * rows * t.k.shape[1] * d / (2 if causal else 1)


def ours(
    t: Tensors,
    *,
    causal: bool,
    diagonal: int | None = None,
    config: KernelConfig | None = None,
    out: torch.Tensor | None = None,
    lse: torch.Tensor | None = None,
) -> tuple[Callable[[], None], str]:
    """A run of the configuration that `choose` picks, and its short form."""
    problem = problem_of(t, causal=causal, diagonal=diagonal)
    gpu = device()
    picked = config or choose(problem, gpu.arch, gpu=gpu.name).config
    assert picked is not None
    o = torch.empty_like(t.q) if out is None else out
    call = ForwardCall(
        *(_arg(x) for x in (t.q, t.k, t.v, o)), lse.data_ptr() if lse is not None else 0
    )
    prepared = prepare_forward(gpu, picked, problem, lse=lse is not None)
    keep = (t, o, lse)

    def run() -> None:
        assert keep
        prepared(call, torch.cuda.current_stream().cuda_stream)

    return run, picked.short_form()


def compile_ahead() -> None:
    """Compiles on all cores what the comparison needs, into the cache."""
    gpu, jobs = device(), set()
    problems = []
    for dtype in (DType.BF16, DType.FP16):
        for d, causal, n in CELLS:
            heads, batch = WIDTH // d, TOKENS // n
            problems += [
                AttentionProblem(batch, heads, heads // group, n + more, n + more, d, dtype, causal)
                for group in (1, 8)
                for more in (0, 37)
                if dtype is DType.BF16 or n == 4096
            ]
            problems.append(AttentionProblem(2, 4, 4, 700, 700, d, dtype, causal))
    for problem in problems:
        picked = choose(problem, gpu.arch, gpu=gpu.name).config
        assert picked is not None
        jobs.add((picked, plan(picked, problem, lse=False, sm_count=gpu.sm_count).traits))
    steps = get_kernel_configs("hopper-prog")
    jobs |= {(c, ForwardTraits()) for c in steps} | {
        (c, ForwardTraits(ragged_q=True)) for c in steps
    }
    compile_many([CompileJob(config, traits, gpu.arch) for config, traits in jobs])


def _arg(x: torch.Tensor) -> TensorArg:
    return TensorArg(x.data_ptr(), x.stride(0), x.stride(1), x.stride(2))


def cudnn(t: Tensors, *, causal: bool) -> Callable[[], torch.Tensor]:
    """cuDNN through torch's SDPA."""
    q, k, v = (x.transpose(1, 2) for x in (t.q, t.k, t.v))

    def run() -> torch.Tensor:
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

    return run


def truth(t: Tensors, *, causal: bool, diagonal: int | None = None) -> torch.Tensor:
    """float64 attention, indexed like Q; rows that see no key are 0."""
    group = t.q.shape[2] // t.k.shape[2]
    q = t.q.double()
    k, v = (x.double().repeat_interleave(group, 2) for x in (t.k, t.v))
    s = torch.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(q.shape[3])
    if causal:
        offset = k.shape[1] - q.shape[1] if diagonal is None else diagonal
        rows = torch.arange(q.shape[1], device=q.device)[:, None]
        keys = torch.arange(k.shape[1], device=q.device)[None]
        s = s.masked_fill(keys > rows + offset, float("-inf"))
    p = torch.softmax(s, -1).nan_to_num(0.0)
    return torch.einsum("bhqk,bkhd->bqhd", p, v)
