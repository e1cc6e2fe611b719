"""Facts as verbs ask for them, counted on all cores under a progress bar, and the order of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from flashsmith.base.errors import ConfigError
from flashsmith.cli.progress import progress_bar
from flashsmith.compile.compiler import available_cores
from flashsmith.kernels import KernelConfig
from flashsmith.measure.facts import Facts
from flashsmith.problem.attention import AttentionProblem
from flashsmith.tuner.run.counting import Places, count_facts, predicted_places
from flashsmith.tuner.workers.pool import WorkerPool

Pair = tuple[KernelConfig, AttentionProblem]


def counted_places(pairs: Iterable[Pair], arch: str, sm_count: int) -> Places:
    """The predicted place of every configuration on its problem; those that hang have none."""
    pairs = list(pairs)
    configs = list(dict.fromkeys(config for config, _ in pairs))
    causal = all(problem.causal for _, problem in pairs)
    return predicted_places(pairs, counted(configs, arch, causal=causal), arch, sm_count)


def counted(
    configs: Sequence[KernelConfig], arch: str, *, causal: bool
) -> dict[KernelConfig, Facts]:
    """What compiler and emulator say of each configuration; nothing of one that hangs."""
    workers = max(min(available_cores(), len(configs)), 1)
    with progress_bar("counting events") as progress, WorkerPool(workers) as pool:
        return count_facts(pool, configs, arch, causal=causal, progress=progress)


def none_fits(configs: Sequence[KernelConfig], problem: AttentionProblem) -> ConfigError:
    """The error for configurations of which none is meant for the first problem asked for."""
    return ConfigError(
        f"None of the {len(configs)} configurations is for {problem.dtype.name} and d_head "
        f"{problem.d_head}; choose another KEY, --dtype or --d-heads."
    )
