"""The facts that predictions are made from, counted by workers side by side."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from flashsmith.arch import get as get_arch
from flashsmith.arch.gpus import GPUS, find_gpu
from flashsmith.compile.compiler import available_cores
from flashsmith.kernels.kernel import KernelConfig
from flashsmith.measure.facts import Facts
from flashsmith.problem.attention import AttentionProblem
from flashsmith.tuner.run.candidates import Pair
from flashsmith.tuner.run.predict import predicted_cycles, step_cycles
from flashsmith.tuner.workers.executor import Answer, Executor, Job, Reply
from flashsmith.tuner.workers.pool import WorkerPool

_AT_ONCE = 10


class Place(int):
    """A place in the predicted order, 1 the first, that knows what it follows from."""

    cycles_over_first: float  # predicted; only ratios of such cycles mean something
    limit: str  # what takes most of them

    def __new__(cls, number: int, cycles_over_first: float = math.nan, limit: str = "") -> Place:
        """The number is what it is compared, sorted and written by."""
        place = super().__new__(cls, number)
        place.cycles_over_first, place.limit = cycles_over_first, limit
        return place


Places = dict[Pair, Place]
COUNT_SECONDS = 60.0  # a small problem takes one; a kernel that hangs in the emulator is left out


def count_facts(
    pool: Executor,
    configs: Sequence[KernelConfig],
    arch: str,
    *,
    causal: bool = False,
    until: float | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[KernelConfig, Facts]:
    """The facts of every configuration that compiles and is reached before `until`.

    Those of one that hangs are left out.
    """
    found: dict[KernelConfig, Facts] = {}
    done = 0

    def on_reply(number: int, reply: Reply) -> None:
        nonlocal done
        done += 1
        if isinstance(reply, Answer) and reply.data:
            found[configs[number]] = Facts(**reply.data)
        progress(done, len(configs))

    jobs: list[Job] = [
        {
            "kind": "count",
            "config": config.short_form(),
            "arch": arch,
            "causal": causal,
            "until": until,
        }
        for config in configs
    ]
    pool.run(jobs, COUNT_SECONDS, on_reply)
    return found


def counted(
    configs: Sequence[KernelConfig],
    arch: str,
    *,
    causal: bool,
    until: float | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[KernelConfig, Facts]:
    """What compiler and emulator say of each configuration, counted on all cores."""
    workers = max(min(available_cores(), len(configs)), 1)
    with WorkerPool(workers) as pool:
        return count_facts(pool, configs, arch, causal=causal, until=until, progress=progress)


def counted_places(
    pairs: Iterable[Pair],
    arch: str,
    sm_count: int,
    *,
    until: float | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Places:
    """The predicted place of every configuration on its problem; those that hang have none."""
    pairs = list(pairs)
    # What the model knows is one kernel's block of scores.
    single = [config for config, _ in pairs if config.kernels() == (config,)]
    configs = list(dict.fromkeys(single))
    causal = all(problem.causal for _, problem in pairs)
    facts = counted(configs, arch, causal=causal, until=until, progress=progress)
    return predicted_places(pairs, facts, arch, sm_count)


def predicted_places(
    pairs: Iterable[Pair],
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
    places: Places = {}
    for problem, group in groups.items():
        ranked = sorted(group, key=lambda item: item[:2])
        for number, (cycles, _, config) in enumerate(ranked, start=1):
            step = step_cycles(config, facts[config], limits)
            over_first = cycles / ranked[0][0] if step else math.nan
            places[config, problem] = Place(number, over_first, step.limit if step else "")
    return places


def sm_count_of(gpu: str, arch: str) -> int:
    """The SMs to predict for: the GPU's, or those of the first known one of the architecture."""
    known = find_gpu(gpu)
    return known.sm_count if known else next(g.sm_count for g in GPUS if g.arch_name == arch)


def in_predicted_order(pairs: Sequence[Pair], places: Places) -> list[Pair]:
    """The pairs, the best ten of each problem first, then the next ten; unknown ones last.

    A budget that ends early has then seen the promising ones of every problem.
    """
    problems = list(dict.fromkeys(problem for _, problem in pairs))

    def rank(pair: Pair) -> tuple[int, int, int]:
        place = places.get(pair, len(pairs) + 1)
        return (place - 1) // _AT_ONCE, problems.index(pair[1]), place

    return sorted(pairs, key=rank)
