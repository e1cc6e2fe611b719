"""The winner of every problem that was tuned, and how far it is ahead."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.cost import cost_of
from flashsmith.tuner.store.measurement import Measurement
from flashsmith.tuner.store.outcome import Timed

TUNED = "flashsmith, tuned"
_PROTOCOLS = ("final", "race", "screen")  # the longest first


@dataclass(frozen=True, slots=True)
class Winner:
    """The fastest configuration on a problem, under the longest protocol that timed any."""

    problem: AttentionProblem
    config: str
    median_us: float
    ahead: float | None  # of the next under the same protocol; 0.01 is 1 %

    @property
    def tflops(self) -> float:
        """The rate that its time means."""
        return cost_of(self.problem).tflops(self.median_us / 1e6)


def winners_on_grid(found: Sequence[Winner], d_head: int, causal: bool) -> dict[int, Winner]:
    """The winners by length at one width and mask: self-attention without groups."""
    best: dict[int, Winner] = {}
    for winner in found:
        p = winner.problem
        is_on_grid = p.q_len == p.k_len and p.heads == p.kv_heads
        is_here = is_on_grid and (p.d_head, p.causal) == (d_head, causal)
        if is_here and (p.q_len not in best or winner.tflops > best[p.q_len].tflops):
            best[p.q_len] = winner
    return best


def winners(measurements: Sequence[Measurement]) -> list[Winner]:
    """One for each problem that has times, by width, mask and length."""
    times: dict[AttentionProblem, dict[str, dict[str, float]]] = {}
    for m in measurements:
        if isinstance(m.outcome, Timed):
            by_protocol = times.setdefault(m.key.problem, {})
            by_protocol.setdefault(m.key.protocol, {})[m.key.config] = m.outcome.median_us
    found = []
    for problem, by_protocol in times.items():
        protocol = next((p for p in _PROTOCOLS if p in by_protocol), next(iter(by_protocol)))
        ranked = sorted((us, config) for config, us in by_protocol[protocol].items())
        ahead = ranked[1][0] / ranked[0][0] - 1 if ranked[1:] else None
        found.append(Winner(problem, ranked[0][1], ranked[0][0], ahead))
    return sorted(
        found, key=lambda w: (w.problem.d_head, w.problem.causal, w.problem.q_len, w.problem)
    )
