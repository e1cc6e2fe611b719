"""The steps of `flashsmith tune`: compile, predict, screen or search, race; each with a bar."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flashsmith.cli.places import counted_places, none_fits
from flashsmith.cli.progress import progress_bar
from flashsmith.kernels import KernelConfig
from flashsmith.problem.attention import AttentionProblem
from flashsmith.tuner.run import predict
from flashsmith.tuner.run.candidates import Candidate, compiled_candidates
from flashsmith.tuner.run.counting import Places, in_predicted_order, sm_count_of
from flashsmith.tuner.run.ranking import Result, tune_problem
from flashsmith.tuner.run.target import Target
from flashsmith.tuner.run.tuner import Tuner
from flashsmith.tuner.store.database import ResultStore
from flashsmith.tuner.store.measurement import Measurement
from flashsmith.tuner.store.outcome import Timed, Verified
from flashsmith.tuner.workers.executor import Executor


@dataclass(frozen=True, slots=True)
class Wish:
    """What is to be tuned, and how much may be spent on it."""

    configs: list[KernelConfig]
    problems: list[AttentionProblem]
    deadline: float | None  # seconds since the epoch
    same_bits_as: KernelConfig | None
    trials: int | None  # of a search for each problem; None: every configuration


@dataclass(frozen=True, slots=True)
class Found:
    """What came of it."""

    results: dict[AttentionProblem, list[Result]]
    places: Places  # as predicted; empty where nothing was
    measured: int  # by this run; the rest was in the store
    unreached: int  # within the budget

    @property
    def is_all_wrong(self) -> bool:
        """Whether something was tried and nothing is right."""
        tried = [r.measurement.outcome for group in self.results.values() for r in group]
        return bool(tried) and not any(isinstance(outcome, Timed | Verified) for outcome in tried)


def carry_out(wish: Wish, target: Target, store: ResultStore, pool: Executor) -> Found:
    """All steps, one after the other."""
    with progress_bar(f"compiling for {target.arch}") as progress:
        candidates = compiled_candidates(wish.configs, wish.problems, target, progress=progress)
    if not candidates:
        raise none_fits(wish.configs, wish.problems[0])
    is_short = wish.deadline is not None or wish.trials is not None
    places = _places(candidates, target, needed=is_short)
    candidates = in_predicted_order(candidates, places)
    with progress_bar("screening" if target.can_time else "verifying") as bar:
        tuner = Tuner(target, store, pool, bar, wish.deadline)
        screened = _screen(tuner, candidates, wish.trials)
    results = _race(tuner, candidates, screened, wish.same_bits_as)
    known = sum(len(group) for group in results.values())
    unreached = 0 if wish.trials else len(candidates) - known
    return Found(results, places, tuner.measured_now, unreached)


def _places(candidates: Sequence[Candidate], target: Target, *, needed: bool) -> Places:
    """The predicted places, where they decide something: without times, or when time is short."""
    if not predict.IS_USED or (target.can_time and not needed):
        return {}
    pairs = [(c.config, c.problem) for c in candidates if c.kernel is not None]
    return counted_places(pairs, target.arch, sm_count_of(target.gpu, target.arch))


def _screen(
    tuner: Tuner, candidates: Sequence[Candidate], trials: int | None
) -> dict[Candidate, Measurement]:
    """What became of every candidate, or of those that a search asks for."""
    if trials is None:
        return tuner.screen(candidates)
    from flashsmith.tuner.run.whole_space import search_space

    found: dict[Candidate, Measurement] = {}
    for problem in dict.fromkeys(candidate.problem for candidate in candidates):
        start = [c.config for c in candidates if c.problem == problem and c.kernel is not None]
        found |= search_space(tuner, start, problem, trials)
    return found


def _race(
    tuner: Tuner,
    candidates: Sequence[Candidate],
    screened: dict[Candidate, Measurement],
    model: KernelConfig | None,
) -> dict[AttentionProblem, list[Result]]:
    results: dict[AttentionProblem, list[Result]] = {}
    everyone = list(dict.fromkeys([*candidates, *screened]))
    problems = dict.fromkeys(candidate.problem for candidate in candidates)
    with progress_bar("racing") as bar:
        for number, problem in enumerate(problems, start=1):
            group = [c for c in everyone if c.problem == problem]
            results[problem] = tune_problem(tuner, group, screened, model)
            bar(number, len(problems))
    return results
