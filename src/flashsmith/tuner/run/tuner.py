"""A tuning run's measurements: screening in workers, races side by side, the gate; all kept."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from flashsmith.kernels.kernel import KernelConfig
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.text import problem_fields
from flashsmith.tuner.run.candidates import (
    Candidate,
    artefact_facts,
    compile_for_gate,
    compile_for_screening,
)
from flashsmith.tuner.run.sanitizer import sanitizer_complaint
from flashsmith.tuner.run.target import Target
from flashsmith.tuner.store.database import ResultStore
from flashsmith.tuner.store.measurement import Measurement, MeasurementKey
from flashsmith.tuner.store.outcome import (
    DidNotRun,
    Outcome,
    Timed,
    TimedOut,
    Verified,
    outcome_from_fields,
)
from flashsmith.tuner.workers.executor import Answer, Died, Executor, Job, Late, Reply

JOB_SECONDS = 120.0  # a job still running then is hung: the slowest real one takes seconds
SCREENING_SHARE = 0.6  # of a budget; the rest is for the races, where there are any

Progress = Callable[[int, int, str], None]  # done, total, the best so far in words


@dataclass(slots=True)
class Tuner:
    """One run over candidates; everything it learns is in the store the moment it is known."""

    target: Target
    store: ResultStore
    pool: Executor
    progress: Progress = lambda done, total, best: None
    deadline: float | None = None
    job_seconds: float = JOB_SECONDS
    # What another tool holds against a configuration that passed; empty if nothing.
    second_opinion: Callable[[KernelConfig], str] = sanitizer_complaint
    measured_now: int = field(default=0, init=False)
    _screening_ends_at: float | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        if self.deadline is not None:
            now = time.time()
            share = SCREENING_SHARE if self.target.can_time else 1.0
            self._screening_ends_at = now + share * max(self.deadline - now, 0.0)

    def screen(self, candidates: Sequence[Candidate]) -> dict[Candidate, Measurement]:
        """The outcome of every candidate, from the store where it is there; aliases run once."""
        found: dict[Candidate, Measurement] = {}
        missing: list[Candidate] = []
        for candidate in candidates:
            known = self.store.get(self.key(candidate, "screen"))
            if known is not None:
                found[candidate] = known
            elif candidate.obstacle is not None:
                found[candidate] = self._keep(candidate, "screen", candidate.obstacle)
            elif candidate.same_as is None:
                missing.append(candidate)
        if self.target.can_time:  # few workers then, which would compile one by one
            compile_for_screening(missing, self.target)
        self._run_screening(missing, found)
        self._copy_to_aliases(candidates, found)
        return found

    def race(
        self, racers: Sequence[Candidate], protocol: str, rounds: int
    ) -> dict[Candidate, Measurement]:
        """Candidates of one problem measured side by side; empty when the race itself failed."""
        known = {c: self.store.get(self.key(c, protocol)) for c in racers}
        if all(known.values()):
            return {c: m for c, m in known.items() if m is not None}
        job: Job = {
            "kind": "race",
            "configs": [c.config.short_form() for c in racers],
            "rounds": rounds,
            **self._where(racers[0].problem),
        }
        replies: dict[int, Reply] = {}
        self.pool.run([job], self.job_seconds, replies.__setitem__)
        reply = replies[0]
        if not isinstance(reply, Answer) or reply.data["void"]:
            return {}
        return {
            c: self._keep(c, protocol, Timed(**times))
            for c, times in zip(racers, reply.data["timed"], strict=True)
        }

    def passes_gate(self, candidate: Candidate, protocol: str) -> bool:
        """Whether a candidate is right on all of check/'s cases; then it may be chosen."""
        key = self.key(candidate, protocol)
        known = self.store.get(key)
        if known is not None and known.gate:
            return True
        if candidate.kernels:
            compile_for_gate(candidate.config, self.target)
        job: Job = {
            "kind": "gate",
            "config": candidate.config.short_form(),
            **self._where(candidate.problem),
        }
        replies: dict[int, Reply] = {}
        self.pool.run([job], self.job_seconds, replies.__setitem__)
        sound = isinstance(outcome_of(replies[0], self.job_seconds), Verified)
        sound = sound and not self.second_opinion(candidate.config)
        if sound:
            self.store.pass_gate(key)
        return sound

    def key(self, candidate: Candidate, protocol: str) -> MeasurementKey:
        """What a measurement of `candidate` is kept under."""
        target = self.target
        return MeasurementKey(
            gpu=target.gpu,
            arch=target.arch,
            driver=target.driver,
            compiler=target.compiler,
            code=candidate.code,
            config=candidate.config.short_form(),
            problem=candidate.problem,
            protocol=protocol,
        )

    def _run_screening(
        self, missing: Sequence[Candidate], found: dict[Candidate, Measurement]
    ) -> None:
        best: dict[AttentionProblem, float] = {}
        total = len(found) + len(missing)

        def on_reply(number: int, reply: Reply) -> None:
            candidate = missing[number]
            if isinstance(reply, Answer) and reply.data.get("skipped"):
                return
            measurement = self._keep(candidate, "screen", outcome_of(reply, self.job_seconds))
            found[candidate] = measurement
            self.progress(len(found), total, _best_text(best, measurement))

        jobs: list[Job] = [
            {
                "kind": "screen",
                "config": candidate.config.short_form(),
                "until": self._screening_ends_at,
                **self._where(candidate.problem),
            }
            for candidate in missing
        ]
        self.pool.run(jobs, self.job_seconds, on_reply)

    def is_screening_over(self, after: float = 0.0) -> bool:
        """Whether screening must leave the rest of the time to the races, so many seconds on."""
        return self._screening_ends_at is not None and time.time() + after > self._screening_ends_at

    def is_over(self) -> bool:
        """Whether all of the time is spent."""
        return self.deadline is not None and time.time() > self.deadline

    def _copy_to_aliases(
        self, candidates: Sequence[Candidate], found: dict[Candidate, Measurement]
    ) -> None:
        by_config = {(c.problem, c.config): m for c, m in found.items()}
        for candidate in candidates:
            if candidate in found or candidate.same_as is None:
                continue
            original = by_config.get((candidate.problem, candidate.same_as))
            if original is not None:
                alias = {"alias_of": candidate.same_as.short_form()}
                found[candidate] = self._keep(candidate, "screen", original.outcome, alias)

    def _keep(
        self,
        candidate: Candidate,
        protocol: str,
        outcome: Outcome,
        more: Mapping[str, object] | None = None,
    ) -> Measurement:
        environment = {**self.target.environment, **artefact_facts(candidate), **(more or {})}
        when = datetime.now(UTC).isoformat(timespec="seconds")
        measurement = Measurement(self.key(candidate, protocol), outcome, False, when, environment)
        if self.store.add(measurement):
            self.measured_now += 1
            return measurement
        # Another tuner on the same store was faster: its row is the one that counts.
        return self.store.get(measurement.key) or measurement

    def _where(self, problem: AttentionProblem) -> Job:
        return {
            "device": self.target.device,
            "arch": self.target.arch,
            "problem": problem_fields(problem),
        }


def outcome_of(reply: Reply, seconds: float) -> Outcome:
    """What a worker's reply says of its job."""
    if isinstance(reply, Late):
        return TimedOut(seconds)
    if isinstance(reply, Died):
        return DidNotRun(reply.cause)
    fields = {name: value for name, value in reply.data.items() if name != "retire"}
    return outcome_from_fields(fields)


def _best_text(best: dict[AttentionProblem, float], measurement: Measurement) -> str:
    outcome = measurement.outcome
    if isinstance(outcome, Timed):
        problem = measurement.key.problem
        best[problem] = min(best.get(problem, outcome.median_us), outcome.median_us)
        return f"best {best[problem]:.1f} µs at {problem.q_len} x {problem.k_len}"
    return type(outcome).__name__
