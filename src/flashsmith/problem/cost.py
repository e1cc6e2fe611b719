"""What a problem costs, in one convention: operations of the products, bytes that must move.

Forward FLOPs are 4 · batch · heads · area · d_head, where area is the part of the score matrix that
the mask leaves: q_len · k_len without a mask, half of that for causal self-attention, in general
the area under the diagonal as a line (single elements on the diagonal count half). Exponentials,
maxima and sums are not counted. Bytes are the least traffic with DRAM: Q, K and V read once, O (and
LSE, 4 bytes a row) written once.
"""

from __future__ import annotations

from dataclasses import dataclass

from flashsmith.problem.attention import AttentionProblem

LSE_BYTES = 4


@dataclass(frozen=True, slots=True)
class Cost:
    """Operations and compulsory bytes of one forward call."""

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


def forward_cost(problem: AttentionProblem, *, lse: bool = False) -> Cost:
    """The cost of one forward call."""
    p = problem
    q_elements = p.batch * p.heads * p.q_len * p.d_head
    kv_elements = p.batch * p.kv_heads * p.k_len * p.d_head
    lse_bytes = p.batch * p.heads * p.q_len * LSE_BYTES if lse else 0
    return Cost(
        flops=4.0 * p.batch * p.heads * visible_area(p) * p.d_head,
        read_bytes=(q_elements + 2 * kv_elements) * p.dtype.bytes,
        written_bytes=q_elements * p.dtype.bytes + lse_bytes,
    )


def visible_area(problem: AttentionProblem) -> float:
    """The part of the q_len x k_len score matrix that the mask leaves, as an area."""
    rows, keys = problem.q_len, problem.k_len
    if not problem.causal:
        return float(rows * keys)
    diagonal = problem.diagonal_offset
    # Row x sees clamp(x + diagonal, 0, keys): 0 up to `first`, a ramp, all keys from `last` on.
    first = min(max(-diagonal, 0), rows)
    last = min(max(keys - diagonal, first), rows)
    ramp = (last - first) * ((first + diagonal) + (last + diagonal)) / 2
    return max(ramp, 0.0) + float((rows - last) * keys)


def visible_pairs(problem: AttentionProblem) -> int:
    """How many (query, key) pairs the mask leaves, counted one by one."""
    if not problem.causal:
        return problem.q_len * problem.k_len
    diagonal = problem.diagonal_offset
    return sum(min(max(i + diagonal + 1, 0), problem.k_len) for i in range(problem.q_len))
