"""What runs a tuner's jobs: workers of this machine or of others, all spoken to alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from flashsmith.base.loose_types import JsonObject

EVALUATOR = "flashsmith.tuner.run.evaluate:evaluate"
Job = JsonObject


@dataclass(frozen=True, slots=True)
class Answer:
    """What the evaluator returned."""

    data: JsonObject


@dataclass(frozen=True, slots=True)
class Died:
    """The worker ended before it answered."""

    cause: str


@dataclass(frozen=True, slots=True)
class Late:
    """The worker was killed because its time was up."""

    seconds: float


Reply = Answer | Died | Late


class Executor(Protocol):
    """Several workers that share a list of jobs."""

    def run(
        self, jobs: Sequence[Job], seconds: float, on_reply: Callable[[int, Reply], None]
    ) -> None:
        """Evaluates jobs in order of the list; `on_reply` gets each job's number and its reply.

        `on_reply` is called in the caller's thread, the moment a reply is there; jobs that last
        longer than `seconds` are ended.
        """
