"""Tuning over a family's whole space: Optuna asks, the tuner screens, compiles and keeps."""

from __future__ import annotations

from collections.abc import Sequence

from flashsmith.arch import get as get_arch
from flashsmith.base.errors import FlashsmithError
from flashsmith.kernels.kernel import KernelConfig
from flashsmith.kernels.plans import require_computable
from flashsmith.problem.attention import AttentionProblem
from flashsmith.tuner.run.candidates import Candidate, compiled_candidates, pairs_of
from flashsmith.tuner.run.optuna_search import search
from flashsmith.tuner.run.tuner import Tuner
from flashsmith.tuner.store.measurement import Measurement
from flashsmith.tuner.store.outcome import Timed


def search_space(
    tuner: Tuner, start: Sequence[KernelConfig], problem: AttentionProblem, trials: int
) -> dict[Candidate, Measurement]:
    """Screens `trials` configurations of the families of `start`; what became of each."""
    target = tuner.target
    arch = get_arch(target.arch)
    screened: dict[Candidate, Measurement] = {}

    def measure(configs: Sequence[KernelConfig]) -> dict[KernelConfig, float | None]:
        found = tuner.screen(compiled_candidates(pairs_of(configs, [problem]), target))
        screened.update(found)
        times = {c.config: _median_us(m) for c, m in found.items()}
        return {config: times.get(config) for config in configs}

    def is_legal(config: KernelConfig) -> bool:
        try:
            require_computable(config, problem)
            config.require_buildable(arch)
        except FlashsmithError:
            return False
        return True

    def is_over() -> bool:
        return tuner.is_screening_over()

    search(start, measure, is_legal, trials=trials, is_over=is_over)
    return screened


def _median_us(measurement: Measurement) -> float | None:
    outcome = measurement.outcome
    return outcome.median_us if isinstance(outcome, Timed) else None
