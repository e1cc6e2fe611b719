"""Counters of a job's kernels: what is launched, what a profiler saw, and one row for each."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from flashsmith.base.errors import ArgumentError, ConfigError, DamagedFile, LaunchError
from flashsmith.bench.ncu import DURATION, METRICS, run_ncu
from flashsmith.bench.ncu_csv import ProfiledKernel, parse_ncu_csv
from flashsmith.kernels import KernelConfig, parse_config
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.cost import cost_of
from flashsmith.problem.text import problem_fields, problem_from_fields

REFERENCE = "FlashAttention-2 (torch)"
# An H200 takes 0.5 s a launch, which is replayed for its counters, and 5 s to start.
_SECONDS_A_LAUNCH = 5.0
_SECONDS_TO_START = 120.0


@dataclass(frozen=True, slots=True)
class Task:
    """Configurations that are launched on one problem."""

    problem: AttentionProblem
    configs: tuple[KernelConfig, ...]


@dataclass(frozen=True, slots=True)
class Job:
    """What the profiled program does."""

    tasks: tuple[Task, ...]
    runs: int
    reference: bool

    @property
    def launches(self) -> int:
        """How many calls it makes."""
        return self.runs * sum(len(task.configs) + self.reference for task in self.tasks)

    def to_json(self) -> str:
        """The job as the child reads it."""
        tasks = [
            {"problem": problem_fields(t.problem), "configs": [c.short_form() for c in t.configs]}
            for t in self.tasks
        ]
        return json.dumps({"tasks": tasks, "runs": self.runs, "reference": self.reference})

    @classmethod
    def from_json(cls, text: str) -> Job:
        """The job that `to_json` wrote."""
        data = json.loads(text)
        tasks = tuple(
            Task(problem_from_fields(t["problem"]), tuple(parse_config(c) for c in t["configs"]))
            for t in data["tasks"]
        )
        return cls(tasks, int(data["runs"]), bool(data["reference"]))


@dataclass(frozen=True, slots=True)
class Launched:
    """One call that was made, or why it was not."""

    task: int
    who: str  # a short form, or REFERENCE
    left_out: str = ""

    def to_data(self) -> dict[str, object]:
        """A line of the child's notes."""
        return {"task": self.task, "who": self.who, "left_out": self.left_out}


@dataclass(frozen=True, slots=True)
class Profile:
    """The counters of one configuration, or of the reference, on one problem; medians of runs."""

    who: str
    problem: AttentionProblem
    metrics: Mapping[str, float | None]  # by the columns of `ncu.METRICS`
    times_as_fast: float | None  # as the reference, in the same run

    @property
    def tflops(self) -> float | None:
        """The rate that the duration means."""
        duration = self.metrics["duration_us"]
        return cost_of(self.problem).tflops(duration / 1e6) if duration else None


def tasks_of(
    configs: Sequence[KernelConfig], problems: Sequence[AttentionProblem]
) -> tuple[Task, ...]:
    """Every problem with the configurations of its width and element type."""
    found = []
    for problem in problems:
        fit = [c for c in configs if (c.d_head, c.dtype) == (problem.d_head, problem.dtype)]
        if fit:
            found.append(Task(problem, tuple(fit)))
    if not found:
        widths = ", ".join(sorted({str(c.d_head) for c in configs}))
        raise ArgumentError(
            f"No configuration has one of the asked d_heads; they have {widths}; pass --d-heads."
        )
    return tuple(found)


def profile(
    job: Job, launched: Callable[[int], None] = lambda launches: None
) -> tuple[list[Profile], list[str]]:
    """Runs the job in one Nsight Compute; the rows, and what was left out with its reason.

    `launched` is told from time to time how many launches are done.
    """
    with tempfile.TemporaryDirectory(prefix="flashsmith-profile-") as name:
        folder = Path(name)
        asked, notes = folder / "job.json", folder / "launches.jsonl"
        asked.write_text(job.to_json(), encoding="utf-8")
        child = [sys.executable, "-m", "flashsmith.bench.profiled", str(asked), str(notes)]
        seconds = _SECONDS_TO_START + _SECONDS_A_LAUNCH * job.launches
        log = run_ncu(
            child,
            folder,
            seconds=seconds,
            look=lambda: launched(_lines_of(notes)),
        )
        noted = notes.read_text(encoding="utf-8").splitlines() if notes.exists() else []
    launches = [Launched(**json.loads(line)) for line in noted]
    if not launches:
        raise LaunchError(
            "ncu", "no launches", "the profiled program ended before its first launch"
        )
    missing = dict.fromkeys(x.left_out for x in launches if x.left_out)
    made = [x for x in launches if not x.left_out]
    return profiles_of(job, made, parse_ncu_csv(log)), list(missing)


def _lines_of(path: Path) -> int:
    """The lines of a file that another process writes; 0 before it has begun."""
    return path.read_bytes().count(b"\n") if path.exists() else 0


def profiles_of(
    job: Job, launches: Sequence[Launched], kernels: Sequence[ProfiledKernel]
) -> list[Profile]:
    """One row a task and configuration, the reference of a task before them."""
    runs: dict[tuple[int, str], list[dict[str, float | None]]] = {}
    for launched, seen in _paired(launches, kernels):
        runs.setdefault((launched.task, launched.who), []).append(_counters(seen))
    found = []
    for (task, who), samples in runs.items():
        metrics = {name: _median([s[name] for s in samples]) for name in METRICS}
        theirs = _median([s["duration_us"] for s in runs.get((task, REFERENCE), [])])
        ours = metrics["duration_us"]
        ratio = theirs / ours if theirs and ours and who != REFERENCE else None
        found.append(Profile(who, job.tasks[task].problem, metrics, ratio))
    return found


def _paired(
    launches: Sequence[Launched], kernels: Sequence[ProfiledKernel]
) -> list[tuple[Launched, list[ProfiledKernel]]]:
    """Every call with the kernels it started: one of ours, or those between two of ours."""
    pairs = []
    position = 0
    for launched in launches:
        start = position
        if launched.who == REFERENCE:
            while position < len(kernels) and _config_of(kernels[position]) is None:
                position += 1
        elif position < len(kernels) and _config_of(kernels[position]) == launched.who:
            position += 1
        else:
            seen = kernels[position].name[:100] if position < len(kernels) else "nothing more"
            raise DamagedFile(
                f"{launched.who} was launched, and Nsight Compute shows {seen}; kernels are "
                f"matched by their order; profile again with fewer configurations."
            )
        if position > start:
            pairs.append((launched, list(kernels[start:position])))
    return pairs


def _config_of(kernel: ProfiledKernel) -> str | None:
    """The configuration in a kernel's name; None for a kernel that is not ours."""
    try:
        return parse_config(kernel.name).short_form()
    except ConfigError:
        return None


def _counters(kernels: Sequence[ProfiledKernel]) -> dict[str, float | None]:
    """The counters of one call: its durations add up, the rest is of its longest kernel."""
    longest = max(kernels, key=lambda kernel: kernel.metrics.get(DURATION) or 0.0)
    counters = {name: longest.metrics.get(metric) for name, metric in METRICS.items()}
    durations = [kernel.metrics.get(DURATION) for kernel in kernels]
    return counters | {"duration_us": sum(d for d in durations if d is not None) or None}


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None
