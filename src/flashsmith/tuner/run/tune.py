"""`flashsmith.tune`: predict, compile and screen the promising first, race the front, pick."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from flashsmith.base import settings
from flashsmith.base.errors import ArgumentError, ArgumentTypeError, ConfigError
from flashsmith.compile.compiler import available_cores
from flashsmith.kernels.kernel import KernelConfig
from flashsmith.kernels.parse import parse_config
from flashsmith.kernels.sets import resolve_key
from flashsmith.problem.attention import AttentionProblem
from flashsmith.tuner.choose.choice import shipped_winners
from flashsmith.tuner.run.candidates import (
    Candidate,
    FirstOfCode,
    Pair,
    compiled_candidates,
    default_configs,
    pairs_of,
)
from flashsmith.tuner.run.counting import Places, counted_places, in_predicted_order, sm_count_of
from flashsmith.tuner.run.machines import Machines
from flashsmith.tuner.run.ranking import Result, tune_problem
from flashsmith.tuner.run.target import Target
from flashsmith.tuner.run.tuner import Tuner
from flashsmith.tuner.store.database import ResultStore
from flashsmith.tuner.store.measurement import Measurement
from flashsmith.tuner.store.outcome import Timed, Verified
from flashsmith.tuner.workers.executor import Executor

PREDICTING_SHARE = 0.25  # of a budget; what is not counted by then comes last
_UNITS = {"s": 1, "m": 60, "h": 3600}

# What is done now, how much of it is done, of how much, and what is worth saying of it.
OnProgress = Callable[[str, int, int, str], None]
Configs = str | KernelConfig | Sequence[KernelConfig] | None


@dataclass(frozen=True, slots=True)
class Tuned:
    """What came of a run."""

    results: dict[AttentionProblem, list[Result]]  # every candidate, the best first
    places: Places  # as predicted; empty where nothing was
    measured: int  # by this run; the rest was in the store
    unreached: int  # within the budget
    target: Target

    @property
    def picks(self) -> dict[AttentionProblem, KernelConfig | None]:
        """The winner of each problem; None where nothing was timed, or nothing was right."""
        return {
            problem: next((r.candidate.config for r in group if r.is_winner), None)
            for problem, group in self.results.items()
        }

    @property
    def is_all_wrong(self) -> bool:
        """Whether something was tried and nothing is right."""
        tried = [r.measurement.outcome for group in self.results.values() for r in group]
        return bool(tried) and not any(isinstance(outcome, Timed | Verified) for outcome in tried)


def tune(
    problems: AttentionProblem | Sequence[AttentionProblem],
    configs: Configs = None,
    *,
    budget: float | str | None = None,
    same_bits_as: KernelConfig | str | None = None,
    trials: int | None = None,
    machines: Machines | None = None,
    store: str | Path | None = None,
    on_progress: OnProgress = lambda step, done, total, text: None,
) -> Tuned:
    """Finds the best configuration of each problem; without a GPU it does all but timing.

    `configs` is a set's name, a configuration, or several; left out, it is what can win on the GPU:
    the tuning sets of all kernels that run there, and the shipped winners. `budget` is a time in
    seconds or a text such as `2m`, compiling included. `same_bits_as` is a configuration whose bits
    the pick must have. `trials` lets Optuna search the whole space, that many configurations a
    problem. What is learnt is kept in `store` as soon as it is known, and is not done again.
    """
    wanted = (problems,) if isinstance(problems, AttentionProblem) else tuple(problems)
    deadline = None if budget is None else time.time() + seconds_of(budget)
    if not wanted or not all(isinstance(problem, AttentionProblem) for problem in wanted):
        raise ArgumentTypeError(
            f"problems is {problems!r}; it must be an AttentionProblem or several."
        )
    model = parse_config(same_bits_as) if isinstance(same_bits_as, str) else same_bits_as
    path = Path(store) if store is not None else settings.results_path()
    with (machines or Machines()).open() as (target, pool), ResultStore(path) as opened:
        if trials is not None and not target.can_time:
            raise ArgumentError(
                "trials is given without a GPU; a search follows times, and nothing is timed here."
            )
        entered = _entered(configs, wanted, target)
        pairs = pairs_of([*([model] if model and model not in entered else []), *entered], wanted)
        if not pairs:
            raise none_fits(entered, wanted[0])
        run = _Run(target, opened, pool, deadline, on_progress)
        return run.whole(pairs, model, trials)


def seconds_of(budget: float | str, name: str = "budget") -> float:
    """The seconds of a time such as `90s`, `2m` or `1h`, or a number of them."""
    if isinstance(budget, str):
        found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)([smh])", budget.strip())
        seconds = float(found[1]) * _UNITS[found[2]] if found else 0.0
    else:
        seconds = float(budget)
    if not seconds > 0:
        raise ArgumentError(
            f"{name} is {budget!r}; it must be a time above 0, such as 90s, 2m or 1h."
        )
    return seconds


def none_fits(configs: Sequence[KernelConfig], problem: AttentionProblem) -> ConfigError:
    """The error for configurations of which none is meant for the first problem asked for."""
    return ConfigError(
        f"None of the {len(configs)} configurations is for a {problem.operation} pass of "
        f"{problem.dtype.name} and d_head {problem.d_head}; choose other configurations, another "
        f"dtype or d_head."
    )


def _entered(
    given: Configs, problems: Sequence[AttentionProblem], target: Target
) -> list[KernelConfig]:
    """The configurations that take part."""
    if given is None:
        shipped = [
            c for problem in problems for c in shipped_winners(problem, target.arch, target.gpu)
        ]
        operations = dict.fromkeys(problem.operation for problem in problems)
        found = [*shipped, *(c for name in operations for c in default_configs(target.arch, name))]
    elif isinstance(given, str):
        found = resolve_key(given)
    else:
        found = [given] if isinstance(given, KernelConfig) else list(given)
    return list(dict.fromkeys(found))


@dataclass(slots=True)
class _Run:
    target: Target
    store: ResultStore
    pool: Executor
    deadline: float | None
    on_progress: OnProgress

    def whole(self, pairs: list[Pair], model: KernelConfig | None, trials: int | None) -> Tuned:
        """All steps, one after the other."""
        places = self._places(pairs, needed=self.deadline is not None or trials is not None)
        problems = list(dict.fromkeys(problem for _, problem in pairs))
        shipped = {(c, p) for p in problems for c in self._shipped(p)}
        pairs = in_predicted_order(pairs, places)
        # What all others are held against is screened first, whatever the budget.
        pairs.sort(key=lambda pair: (pair[0] != model, pair not in shipped))
        screened: dict[Candidate, Measurement] = {}
        step = "screening" if self.target.can_time else "verifying"

        def progress(done: int, total: int, text: str) -> None:
            self.on_progress(step, len(screened) + done, len(pairs), text)

        tuner = Tuner(self.target, self.store, self.pool, progress, self.deadline)
        for part in self._compiled(pairs, tuner, at_once=trials is not None):
            screened |= tuner.screen(part) if trials is None else _searched(tuner, part, trials)
        results = self._raced(tuner, problems, screened, model)
        unreached = 0 if trials else len(pairs) - len(screened)
        return Tuned(results, places, tuner.measured_now, unreached, self.target)

    def _places(self, pairs: Sequence[Pair], *, needed: bool) -> Places:
        """The predicted places, where they decide: without times, or when time is short."""
        if self.target.can_time and not needed:
            return {}
        now = time.time()
        until = None if self.deadline is None else now + PREDICTING_SHARE * (self.deadline - now)
        sms = sm_count_of(self.target.gpu, self.target.arch)

        def progress(done: int, total: int) -> None:
            self.on_progress("counting events", done, total, "")

        return counted_places(pairs, self.target.arch, sms, until=until, progress=progress)

    def _shipped(self, problem: AttentionProblem) -> list[KernelConfig]:
        return shipped_winners(problem, self.target.arch, self.target.gpu)

    def _compiled(
        self, pairs: Sequence[Pair], tuner: Tuner, *, at_once: bool
    ) -> Iterator[list[Candidate]]:
        """Candidates, all at once, or in parts that a budget may end between."""
        first: FirstOfCode = {}
        size = len(pairs)
        if self.deadline is not None and not at_once:
            # Without times a candidate costs more than its compiler: smaller parts end in time.
            size = available_cores() * (2 if self.target.can_time else 1)
        took = 0.0  # seconds of the part before: the next one must end in time too

        def progress(done: int, total: int) -> None:
            if self.deadline is None:
                self.on_progress(f"compiling for {self.target.arch}", done, total, "")

        for begin in range(0, len(pairs), size):
            if tuner.is_screening_over(after=took):
                return
            began = time.time()
            part = pairs[begin : begin + size]
            yield compiled_candidates(part, self.target, first=first, progress=progress)
            took = time.time() - began

    def _raced(
        self,
        tuner: Tuner,
        problems: Sequence[AttentionProblem],
        screened: dict[Candidate, Measurement],
        model: KernelConfig | None,
    ) -> dict[AttentionProblem, list[Result]]:
        results: dict[AttentionProblem, list[Result]] = {}
        for number, problem in enumerate(problems, start=1):
            group = [c for c in screened if c.problem == problem]
            if group:
                results[problem] = tune_problem(tuner, group, screened, model)
            self.on_progress("racing", number, len(problems), "")
        return results


def _searched(
    tuner: Tuner, candidates: Sequence[Candidate], trials: int
) -> dict[Candidate, Measurement]:
    """What a search over the whole space found, with the candidates as its start."""
    from flashsmith.tuner.run.whole_space import search_space

    found: dict[Candidate, Measurement] = {}
    for problem in dict.fromkeys(candidate.problem for candidate in candidates):
        start = [c.config for c in candidates if c.problem == problem and c.kernels]
        found |= search_space(tuner, start, problem, trials)
    return found
