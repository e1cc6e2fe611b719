"""Our choice beside its peers on one problem, interleaved, with a GEMM as the ceiling."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from flashsmith.base.loose_types import TorchTensor
from flashsmith.bench.peers import Peer, contenders_of, torch_tensors
from flashsmith.bench.suite import Shape
from flashsmith.kernels.arguments import TensorArg
from flashsmith.kernels.kernel import KernelConfig
from flashsmith.measure.environment import Environment
from flashsmith.measure.interleaved import Comparison, Contender, Regime, Timed, compare
from flashsmith.measure.record import Record, records_of
from flashsmith.measure.statistics import Summary, ratio_by_round
from flashsmith.measure.timed_configs import contender_of
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.cost import cost_of
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
        """Everyone else but the GEMM."""
        return tuple(t for t in self.comparison.timed[self.n_ours :] if t.name != GEMM)

    def times_as_fast(self, peer: Timed, ours: Timed | None = None) -> Summary:
        """Our speed over a peer's, round by round; above 1 we are faster."""
        return ratio_by_round(peer.times_us, (ours or self.ours).times_us)

    def gemm_tflops(self) -> float | None:
        """The rate of a large matrix product in the same rounds."""
        found = next((t for t in self.comparison.timed if t.name == GEMM), None)
        return GEMM_FLOPS / found.time_us.median / 1e6 if found else None


def computing(configs: Sequence[KernelConfig], problem: AttentionProblem) -> list[KernelConfig]:
    """Those that compute a problem at its own width: a wider kernel would be another race."""
    return [c for c in configs if (c.dtype, c.d_head) == (problem.dtype, problem.d_head)]


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
    with torch_tensors(problem) as (q, k, v, o):
        call = {name: _arg(t) for name, t in zip("qkvo", (q, k, v, o), strict=True)}
        ours = [contender_of(device, c, problem, call) for c in configs or (choice.config,)]
        contenders = [
            *(ours if configs else [Contender(OURS, ours[0].launch)]),
            *contenders_of(device, peers, problem, q, k, v),
            *_gemm(device, problem),
        ]
        compared = compare(device, contenders, rounds=rounds, regime=regime)
        return Versus(shape, choice, compared, len(ours))


def _gemm(device: CudaDevice, problem: AttentionProblem) -> Iterator[Contender]:
    import torch

    dtype = {"FP16": torch.float16, "BF16": torch.bfloat16}[problem.dtype.name]
    a, b = (torch.randn(GEMM_SIZE, GEMM_SIZE, device="cuda", dtype=dtype) for _ in range(2))
    c = torch.empty_like(a)
    product = Peer(GEMM, lambda *_: lambda: torch.mm(a, b, out=c))
    return contenders_of(device, [product], problem, None, None, None)


def _arg(tensor: TorchTensor) -> TensorArg:
    batch, seq, head, _ = tensor.stride()
    return TensorArg(tensor.data_ptr(), batch, seq, head)


def records(
    found: Versus, environment: Environment, suite: str, peers: Sequence[Peer] = ()
) -> list[Record]:
    """A record for every contender; the matrix product counts its own operations."""
    about = {peer.name: peer.about for peer in peers}
    flops = cost_of(found.shape.problem).flops
    made = records_of(found.comparison, found.shape.problem, environment, suite=suite, flops=flops)
    return [_stated(record, found, about) for record in made]


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
