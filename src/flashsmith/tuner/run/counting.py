"""The facts that predictions are made from, counted by workers side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from flashsmith.arch import GPUS, find_gpu
from flashsmith.arch import get as get_arch
from flashsmith.kernels.kernel import KernelConfig
from flashsmith.measure.facts import Facts
from flashsmith.problem.attention import AttentionProblem
from flashsmith.tuner.run.candidates import Candidate
from flashsmith.tuner.run.predict import predicted_cycles
from flashsmith.tuner.workers.executor import Answer, Executor, Job, Reply

_AT_ONCE = 10
Places = dict[tuple[KernelConfig, AttentionProblem], int]
COUNT_SECONDS = 60.0  # a small problem takes one; a kernel that hangs in the emulator is left out


def count_facts(
    pool: Executor,
    configs: Sequence[KernelConfig],
    arch: str,
    *,
    causal: bool = False,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[KernelConfig, Facts]:
    """The facts of every configuration that compiles; those of one that hangs are left out."""
    found: dict[KernelConfig, Facts] = {}
    done = 0

    def on_reply(number: int, reply: Reply) -> None:
        nonlocal done
        done += 1
        if isinstance(reply, Answer) and reply.data:
            found[configs[number]] = Facts(**reply.data)
        progress(done, len(configs))

    jobs: list[Job] = [
        {"kind": "count", "config": config.short_form(), "arch": arch, "causal": causal}
        for config in configs
    ]
    pool.run(jobs, COUNT_SECONDS, on_reply)
    return found


def predicted_places(
    pairs: Iterable[tuple[KernelConfig, AttentionProblem]],
    facts: Mapping[KernelConfig, Facts],
    arch: str,
    sm_count: int,
) -> Places:
    """The place of each counted configuration on its problem, 1 for the one predicted fastest."""
    limits = get_arch(arch)
    groups: dict[AttentionProblem, list[tuple[float, str, KernelConfig]]] = {}
    for config, problem in pairs:
        if config in facts:
            cycles = predicted_cycles(config, problem, facts[config], limits, sm_count)
            # Equal predictions are ordered by the text: the same order on every run.
            groups.setdefault(problem, []).append((cycles, config.short_form(), config))
    return {
        (config, problem): place
        for problem, group in groups.items()
        for place, (_, _, config) in enumerate(sorted(group, key=lambda item: item[:2]), start=1)
    }


def sm_count_of(gpu: str, arch: str) -> int:
    """The SMs to predict for: the GPU's, or those of the first known one of the architecture."""
    known = find_gpu(gpu)
    return known.sm_count if known else next(g.sm_count for g in GPUS if g.arch_name == arch)


def in_predicted_order(candidates: Sequence[Candidate], places: Places) -> list[Candidate]:
    """The candidates, the best ten of each problem first, then the next ten; unknown ones last.

    A budget that ends early has then seen the promising ones of every problem.
    """
    problems = list(dict.fromkeys(c.problem for c in candidates))

    def rank(candidate: Candidate) -> tuple[int, int, int]:
        place = places.get((candidate.config, candidate.problem), len(candidates) + 1)
        return (place - 1) // _AT_ONCE, problems.index(candidate.problem), place

    return sorted(candidates, key=rank)
