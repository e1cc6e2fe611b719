"""What a problem costs, in one convention: operations of the products, bytes that must move.

FLOPs are 2 · products · batch · heads · area · d_head: two products forward, five backward (what is
computed again counts once); where V is narrower, one of the two has its width. Area is the part of
the score matrix that the mask leaves: q_len · k_len without a mask, half of that for causal
self-attention, in general the area under the diagonal as a line (single elements on the diagonal
count half). Exponentials, maxima and sums are not counted. Bytes are the least traffic with DRAM:
every input read once, every output written once (LSE: 4 bytes a row).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.signature import TensorRole, signature_of


@dataclass(frozen=True, slots=True)
class Cost:
    """Operations and compulsory bytes of one call."""

    flops: float
    read_bytes: int
    written_bytes: int

    @property
    def total_bytes(self) -> int:
        """What passes between DRAM and the chip at least."""
        return self.read_bytes + self.written_bytes

    @property
    def flop_per_byte(self) -> float:
        """Arithmetic intensity; 0 for an empty problem."""
        return self.flops / self.total_bytes if self.total_bytes else 0.0

    def tflops(self, seconds: float) -> float:
        """10^12 operations a second of a call that took `seconds`."""
        return self.flops / seconds / 1e12


def cost_of(problem: AttentionProblem) -> Cost:
    """The cost of one call."""
    p, signature = problem, signature_of(problem)
    return Cost(
        flops=2.0 * signature.products * p.heads * p.area * (p.d_head + p.v_width) / 2,
        read_bytes=sum(_bytes(tensor, p) for tensor in signature.inputs(p)),
        written_bytes=sum(_bytes(tensor, p) for tensor in signature.outputs(p)),
    )


def cache_bytes(problem: AttentionProblem) -> int:
    """Bytes of K and V."""
    inputs = signature_of(problem).inputs(problem)
    return sum(_bytes(tensor, problem) for tensor in inputs if tensor.name in ("k", "v"))


def _bytes(tensor: TensorRole, problem: AttentionProblem) -> int:
    # A bias counts as one that sequences and heads share: how it is broadcast is in its strides.
    shape = tensor.shape(problem)[2:] if tensor.is_scores else tensor.shape(problem)
    return math.prod(shape) * tensor.element_bytes(problem)
