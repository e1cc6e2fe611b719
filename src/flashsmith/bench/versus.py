"""Our choice beside its peers on one problem, interleaved, with what bounds it as yardstick."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from flashsmith.base.loose_types import TorchTensor
from flashsmith.bench.calls import Call
from flashsmith.bench.peers import Peer, contenders_of, torch_tensors
from flashsmith.bench.suite import Shape
from flashsmith.kernels.arguments import TensorArg
from flashsmith.kernels.kernel import KernelConfig
from flashsmith.kernels.launch import Call as Arguments
from flashsmith.measure.environment import Environment
from flashsmith.measure.interleaved import Comparison, Contender, Regime, Timed, compare
from flashsmith.measure.plain_read import READ, plain_read
from flashsmith.measure.record import Record, records_of
from flashsmith.measure.statistics import Summary, ratio_by_round
from flashsmith.measure.timed_configs import contender_of
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.cost import cache_bytes, cost_of
from flashsmith.problem.signature import FORWARD
from flashsmith.runtime.cuda.device import CudaDevice
from flashsmith.tuner.choose.choice import Choice, choose

OURS = "flashsmith"
GEMM = "GEMM"
GEMM_SIZE = 8192
GEMM_FLOPS = 2.0 * GEMM_SIZE**3


@dataclass(frozen=True, slots=True)
class Versus:
    """One problem: what we chose, and how every contender did in the same rounds."""

    shape: Shape
    choice: Choice
    comparison: Comparison
    n_ours: int = 1  # more where a set is timed: then the choice is its first
    left_out: Mapping[str, str] = field(default_factory=dict)  # peers that did not run, and why

    @property
    def ours(self) -> Timed:
        """Our choice; it is the baseline of the comparison."""
        return self.comparison.timed[0]

    @property
    def set(self) -> tuple[Timed, ...]:
        """Every configuration of ours."""
        return self.comparison.timed[: self.n_ours]

    @property
    def peers(self) -> tuple[Timed, ...]:
        """Everyone else but the yardsticks."""
        return tuple(t for t in self.comparison.timed[self.n_ours :] if t.name not in (GEMM, READ))

    @property
    def read(self) -> Timed | None:
        """The kernel that only reads K and V, of caches: what memory gives in the same rounds."""
        return next((t for t in self.comparison.timed if t.name == READ), None)

    def of_read(self, timed: Timed) -> float | None:
        """A contender's share of the rate of the plain read, round by round."""
        return ratio_by_round(self.read.times_us, timed.times_us).median if self.read else None

    def times_as_fast(self, peer: Timed, ours: Timed | None = None) -> Summary:
        """Our speed over a peer's, round by round; above 1 we are faster."""
        return ratio_by_round(peer.times_us, (ours or self.ours).times_us)

    def gemm_tflops(self) -> float | None:
        """The rate of a large matrix product in the same rounds."""
        found = next((t for t in self.comparison.timed if t.name == GEMM), None)
        return GEMM_FLOPS / found.time_us.median / 1e6 if found else None


def computing(configs: Sequence[KernelConfig], problem: AttentionProblem) -> list[KernelConfig]:
    """Those that compute a problem at its own width: a wider kernel would be another race."""
    fitting = [c for c in configs if (c.dtype, c.d_head) == (problem.dtype, problem.d_head)]
    return [config for config in fitting if problem.operation == config.OPERATION]


def versus(
    device: CudaDevice,
    shape: Shape,
    peers: list[Peer],
    *,
    rounds: int,
    regime: Regime,
    configs: Sequence[KernelConfig] = (),
) -> Versus:
    """Runs one shape: what is chosen for it, or each of `configs` where a set is to be timed."""
    problem = shape.problem
    given = configs[0] if configs else None
    choice = choose(problem, device.arch, gpu=device.name, given=given)
    assert choice.config is not None
    with torch_tensors(problem) as tensors:
        call = {name: _arg(tensor) for name, tensor in tensors.items()}
        if problem.operation != FORWARD.operation:
            _run_forward(device, problem, call)
        ours = [contender_of(device, c, problem, call) for c in configs or (choice.config,)]
        others, left_out = contenders_of(device, peers, problem, tensors)
        with _yardstick(device, problem, tensors) as yardstick:
            contenders = [
                *(ours if configs else [Contender(OURS, ours[0].launch)]),
                *others,
                *yardstick,
            ]
            compared = compare(device, contenders, rounds=rounds, regime=regime)
        return Versus(shape, choice, compared, len(ours), left_out)


def _run_forward(device: CudaDevice, problem: AttentionProblem, call: Arguments) -> None:
    """Fills in what a backward pass takes of the forward one."""
    forward = replace(problem, operation=FORWARD.operation, lse=True, dlse=False)
    config = choose(forward, device.arch, gpu=device.name).config
    assert config is not None
    names = [role.name for role in FORWARD.of(forward)]
    contender_of(device, config, forward, {name: call[name] for name in names}).launch(0)
    device.synchronize()


@contextmanager
def _yardstick(
    device: CudaDevice, problem: AttentionProblem, tensors: Mapping[str, TorchTensor]
) -> Iterator[list[Contender]]:
    """What bounds a problem, in the same rounds: a matrix product, or a plain read of a cache."""
    if not problem.k_lengths:
        yield _gemm(device, problem)
        return
    with plain_read(device, tensors["k"].data_ptr(), cache_bytes(problem)) as read:
        yield [read]


def _gemm(device: CudaDevice, problem: AttentionProblem) -> list[Contender]:
    import torch

    dtype = {"FP16": torch.float16, "BF16": torch.bfloat16}[problem.dtype.name]
    a, b = (torch.randn(GEMM_SIZE, GEMM_SIZE, device="cuda", dtype=dtype) for _ in range(2))
    c = torch.empty_like(a)

    def product_of(*_: object) -> Call:
        return lambda: torch.mm(a, b, out=c)

    product = Peer(GEMM, product_of, gradients=product_of)
    return contenders_of(device, [product], problem, {})[0]


def _arg(tensor: TorchTensor) -> TensorArg:
    if tensor.dim() != 4:  # a table
        return TensorArg(tensor.data_ptr())
    batch, seq, head, _ = tensor.stride()
    return TensorArg(tensor.data_ptr(), batch, seq, head)


def records(
    found: Versus, environment: Environment, suite: str, peers: Sequence[Peer] = ()
) -> list[Record]:
    """A record for every contender; the matrix product counts its own operations.

    Those of a cache say what share of the plain read's rate they have, and that one its rate.
    """
    about = {peer.name: peer.about for peer in peers}
    flops = cost_of(found.shape.problem).flops
    made = records_of(found.comparison, found.shape.problem, environment, suite=suite, flops=flops)
    return [
        _stated(_shared(record, found, timed), found, about)
        for record, timed in zip(made, found.comparison.timed, strict=True)
    ]


def _shared(record: Record, found: Versus, timed: Timed) -> Record:
    """The record with what a cache's yardstick says."""
    if found.read is None:
        return record
    rate = cache_bytes(found.shape.problem) / timed.time_us.median / 1e3
    return replace(record, result={**record.result, "of_read": found.of_read(timed), "gb_s": rate})


def _stated(record: Record, found: Versus, about: Mapping[str, Mapping[str, str]]) -> Record:
    """The record with what only the comparison knows: the product's rate, our configuration."""
    stated = about.get(str(record.what["name"]))
    if stated:
        return replace(record, what={**record.what, **stated})
    if record.what["name"] == GEMM:
        return replace(record, result={**record.result, "tflops": found.gemm_tflops()})
    if record.what["name"] == OURS and found.choice.config is not None:
        return replace(record, what={**record.what, "config": found.choice.config.short_form()})
    return record
