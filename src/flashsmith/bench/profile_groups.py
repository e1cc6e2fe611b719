"""A long profile in parts: kernels compiled before it, a profiler a part, and a failure's reach."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from flashsmith.arch import get as get_arch
from flashsmith.base.errors import DamagedFile, FlashsmithError, LaunchError, OutOfTime
from flashsmith.bench.profile import Job, Profile, Task, profile
from flashsmith.compile.artefact import CompiledKernel
from flashsmith.compile.compiler import CompileJob, compile_many
from flashsmith.kernels.kernel import KernelConfig
from flashsmith.kernels.plans import needs_of
from flashsmith.problem.attention import AttentionProblem
from flashsmith.runtime.device import Device

LAUNCHES_A_GROUP = 90  # what is lost when a profiler dies


@dataclass(frozen=True, slots=True)
class Group:
    """A part of a job that one profiler runs, and its place among the others."""

    job: Job
    number: int  # from 1
    count: int

    def __str__(self) -> str:
        lengths = dict.fromkeys(f"{task.problem.q_len}" for task in self.job.tasks)
        return f"group {self.number} of {self.count} (length {', '.join(lengths)})"


@dataclass(slots=True)
class Profiled:
    """What came of the groups so far."""

    profiles: list[Profile] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)  # a sentence a group
    error: FlashsmithError | None = None  # of the first group that failed


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a group brought nothing, and whether those after it are not run either."""

    why: str
    is_last: bool


@dataclass(frozen=True, slots=True)
class Watcher:
    """Who is told how it goes: the launches that are done, and the rows of each group."""

    launched: Callable[[int], None]
    finished: Callable[[Group, Sequence[Profile]], None]


def compiled_ahead(
    job: Job, device: Device, progress: Callable[[int, int], None] | None = None
) -> tuple[Job, list[str]]:
    """The job without what cannot be built, and why not: nothing compiles under a profiler."""
    jobs: dict[tuple[AttentionProblem, KernelConfig], CompileJob] = {}
    refused: dict[tuple[AttentionProblem, KernelConfig], str] = {}
    for task in job.tasks:
        for config in task.configs:
            try:
                config.require_buildable(get_arch(device.arch))
                needs = needs_of(config, task.problem)
                jobs[task.problem, config] = CompileJob(config, needs, device.arch)
            except FlashsmithError as error:
                refused[task.problem, config] = str(error)
    wanted = list(dict.fromkeys(jobs.values()))
    made = dict(zip(wanted, compile_many(wanted, progress=progress), strict=True))
    for pair, one in jobs.items():
        if not isinstance(made[one], CompiledKernel):
            refused[pair] = str(made[one])
    tasks = [
        Task(task.problem, tuple(c for c in task.configs if (task.problem, c) not in refused))
        for task in job.tasks
    ]
    left = tuple(task for task in tasks if task.configs)
    return replace(job, tasks=left), list(dict.fromkeys(refused.values()))


def groups_of(job: Job, at_most: int = LAUNCHES_A_GROUP) -> list[Group]:
    """The job's tasks in order, in groups of at most so many launches.

    A task that is longer by itself is cut, and the reference runs in each part of it, so that every
    ratio is of one process.
    """
    parts: list[Job] = []
    for task in (part for whole in job.tasks for part in _parts(job, whole, at_most)):
        alone = replace(job, tasks=(task,))
        if parts and parts[-1].launches + alone.launches <= at_most:
            parts[-1] = replace(job, tasks=(*parts[-1].tasks, task))
        else:
            parts.append(alone)
    return [Group(part, number, len(parts)) for number, part in enumerate(parts, start=1)]


def _parts(job: Job, task: Task, at_most: int) -> Iterator[Task]:
    size = max(at_most // job.runs - job.reference, 1)
    for start in range(0, len(task.configs), size):
        yield Task(task.problem, task.configs[start : start + size])


def profile_groups(groups: Sequence[Group], watcher: Watcher) -> Profiled:
    """Profiles one group after the other; what is there is kept, whatever a later one does.

    A group that crashed costs its own rows. After an interruption, the end of a group's time or a
    refusal that holds for the whole machine the rest is not run.
    """
    found = Profiled()
    done = 0
    for group in groups:
        try:
            why = _profile_group(group, done, watcher, found)
        except KeyboardInterrupt as error:
            why = Failure(f"stopped by {str(error) or 'SIGINT'}", is_last=True)
        if why is not None:
            found.failures.append(_sentence(group, why))
            if why.is_last:
                break
        done += group.job.launches
    return found


def _profile_group(group: Group, done: int, watcher: Watcher, found: Profiled) -> Failure | None:
    """Adds what one group brings to `found`; why it failed, if it did."""
    try:
        rows, left_out = profile(group.job, partial(_further, watcher, done))
    except FlashsmithError as error:
        found.error = found.error or error
        is_of_the_group = isinstance(error, LaunchError | DamagedFile)
        return Failure(str(error), is_last=isinstance(error, OutOfTime) or not is_of_the_group)
    finally:
        watcher.launched(done + group.job.launches)
    found.profiles += rows
    found.left_out += left_out
    watcher.finished(group, rows)
    return None


def _further(watcher: Watcher, before: int, launches: int) -> None:
    watcher.launched(before + launches)


def _sentence(group: Group, failure: Failure) -> str:
    rest = group.count - group.number
    after = f"; groups not run after it: {rest}" if failure.is_last and rest else ""
    return f"{group} failed: {failure.why.rstrip('.')}{after}."


class Clock:
    """Says how long the rest takes, if it goes on as it has gone."""

    def __init__(self, total: int, now: Callable[[], float] = time.monotonic) -> None:
        self._total, self._now, self._start = total, now, now()

    def state(self, done: int) -> str:
        """Launches, the time they took and the time that the rest will take."""
        took = self._now() - self._start
        left = took / done * (self._total - done) if done else 0.0
        return f"{done} of {self._total} launches in {took:.0f} s, about {left:.0f} s left"
