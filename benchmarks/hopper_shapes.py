"""The cells of the Hopper comparison, and how our kernels and torch's are called on a cell."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F  # noqa: N812
from torch.nn.attention import SDPBackend, sdpa_kernel

from flashsmith.base.dtypes import DType
from flashsmith.base.errors import FlashsmithError
from flashsmith.compile.compiler import CompileJob
from flashsmith.config import get_kernel_configs
from flashsmith.config.kernel_config import KernelConfig
from flashsmith.measure.interleaved import Contender
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
SHAPES_LENGTH = 4096
MORE_ROWS = 37  # 4,133 is a prime: no multiple of any tile

ROUNDING = 5e-3  # twice what a BF16 kernel is off the truth

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
    rounded: bool = False,
) -> Tensors:
    """Normal numbers for a cell, or a variation of it; rounded to what BF16 holds where asked."""
    heads, batch, rows = WIDTH // d, max(TOKENS // length, 1), length + more_rows

    def one(n: int) -> torch.Tensor:
        shape = (batch, n, rows, d) if heads_first else (batch, rows, n, d)
        made = torch.randn(shape, device="cuda", dtype=torch.bfloat16 if rounded else dtype)
        made = made.to(dtype)
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


def pick(problem: AttentionProblem) -> KernelConfig:
    """What `choose` takes for a problem on this GPU."""
    gpu = device()
    picked = choose(problem, gpu.arch, gpu=gpu.name).config
    assert picked is not None
    return picked


def ours(
    t: Tensors,
    *,
    causal: bool,
    name: str = "",
    diagonal: int | None = None,
    config: KernelConfig | None = None,
    out: torch.Tensor | None = None,
    lse: torch.Tensor | None = None,
) -> tuple[Contender, KernelConfig]:
    """A configuration on the tensors, and which: that of `choose` where none is given."""
    problem = problem_of(t, causal=causal, diagonal=diagonal)
    picked = config or pick(problem)
    o = torch.empty_like(t.q) if out is None else out
    call = ForwardCall(
        _arg(t.q), _arg(t.k), _arg(t.v), _arg(o), lse.data_ptr() if lse is not None else 0
    )
    prepared = prepare_forward(device(), picked, problem, lse=lse is not None)
    torch.cuda.synchronize()  # the tensors are filled: other streams do not wait for torch's
    keep = (t, o, lse)

    def launch(stream: int) -> None:
        assert keep
        prepared(call, stream)

    return Contender(name or picked.short_form(), launch), picked


def if_right(
    t: Tensors, config: KernelConfig, expected: torch.Tensor, *, causal: bool
) -> Contender | None:
    """A configuration that builds and computes what is expected; else None, and it is said."""
    out = torch.full_like(t.q, float("nan"))
    try:
        found, _ = ours(t, causal=causal, config=config, out=out)
    except FlashsmithError as error:
        print("left out:", error, flush=True)
        return None
    now(found)
    torch.cuda.synchronize()
    off = float((out.double() - expected.double()).norm() / expected.double().norm())
    if off < ROUNDING:
        return found
    print(f"WRONG by {off}: {config.short_form()}", flush=True)
    return None


def _arg(x: torch.Tensor) -> TensorArg:
    return TensorArg(x.data_ptr(), x.stride(0), x.stride(1), x.stride(2))


def now(contender: Contender) -> None:
    """Runs it on torch's stream."""
    contender.launch(torch.cuda.current_stream().cuda_stream)


def cudnn(t: Tensors, *, causal: bool) -> Callable[[], torch.Tensor]:
    """cuDNN through torch's SDPA."""
    q, k, v = (x.transpose(1, 2) for x in (t.q, t.k, t.v))

    def run() -> torch.Tensor:
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION), torch.no_grad():
            return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

    return run


def captured(name: str, run: Callable[[], object]) -> Contender:
    """A run of torch, put on the stream it is given: the protocol captures it as it does ours.

    A graph of torch's own costs host time at each replay, between the two events.
    """
    written: list[object] = []  # by a captured run: a graph knows addresses only

    def launch(stream: int) -> None:
        with torch.no_grad(), torch.cuda.stream(torch.cuda.ExternalStream(stream)):
            written[:] = [run()]

    return Contender(name, launch)


def truth(
    t: Tensors, *, causal: bool, diagonal: int | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """float64 attention, indexed like Q, and its log-sum-exps; rows that see no key are 0."""
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
    return torch.einsum("bhqk,bkhd->bqhd", p, v), torch.logsumexp(s, -1)


def problems() -> list[AttentionProblem]:
    """Everything that `choose` is asked in the comparison, the shapes and the checks."""
    made = []
    for d, causal, n in CELLS:
        heads, batch = WIDTH // d, TOKENS // n
        plain = AttentionProblem(batch, heads, heads, n, n, d, DType.BF16, causal)
        made.append(plain)
        if n == SHAPES_LENGTH:
            odd = n + MORE_ROWS
            made += [replace(plain, dtype=DType.FP16), replace(plain, kv_heads=heads // 8)]
            made.append(replace(plain, q_len=odd, k_len=odd))
            small = AttentionProblem(2, 4, 4, 700, 700, d, DType.BF16, causal)
            made += [small, replace(small, dtype=DType.FP16)]
    return made


def jobs_of(pairs: Iterable[tuple[KernelConfig, AttentionProblem]]) -> list[CompileJob]:
    """The kernels of configurations on problems; of small problems with log-sum-exp too."""
    gpu = device()
    return [
        CompileJob(config, plan(config, problem, lse=lse, sm_count=gpu.sm_count).traits, gpu.arch)
        for config, problem in pairs
        for lse in ((False, True) if problem.q_len < SHAPES_LENGTH else (False,))
    ]


def usual_jobs() -> list[CompileJob]:
    """The kernels of the cells, the shapes, the checks and the ladder."""
    grid = AttentionProblem(1, 16, 16, TOKENS, TOKENS, 128, DType.BF16, False)
    steps = [(step, grid) for step in get_kernel_configs("hopper-prog")]
    return jobs_of([*((pick(problem), problem) for problem in problems()), *steps])
