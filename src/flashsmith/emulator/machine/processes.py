"""Runs of many chunks in several processes, where ctas do not talk to each other."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from flashsmith.base.errors import EmulationError, FlashsmithError
from flashsmith.base.forks import forking_helpers

PAYS_SECONDS = 0.5  # work that is worth starting processes for

Job = TypeVar("Job")
Result = TypeVar("Result")


def process_count(communicates: bool, chunks: int, wanted: int | None) -> int:
    """How many processes a launch may use: one where ctas may depend on each other."""
    if communicates or not sys.platform.startswith("linux"):
        return 1
    if multiprocessing.parent_process() is not None:
        return 1  # a worker of someone who has divided the work already
    if wanted is None:
        # A fork while other threads run may copy a lock that nobody will open.
        wanted = (os.cpu_count() or 1) if threading.active_count() == 1 else 1
    return max(1, min(wanted, chunks))


def run_all(
    run: Callable[[Job], Result], jobs: Sequence[Job], processes: int, *, at_once: bool
) -> list[Result]:
    """The results of `run` on each job, in order; the first fault is raised.

    Unless `at_once`, the first job tells whether the rest is worth the processes.
    """
    if processes == 1:
        return [run(job) for job in jobs]
    done: list[Result] = []
    if not at_once:
        started = time.perf_counter()
        done.append(run(jobs[0]))
        jobs = jobs[1:]
        if len(jobs) * (time.perf_counter() - started) < PAYS_SECONDS:
            return done + [run(job) for job in jobs]
    with _Helpers(run, jobs, min(processes, len(jobs))) as helpers:
        return done + helpers.results()


class _Helpers(Generic[Job, Result]):
    """Forked processes that run jobs in their parent's memory; none outlives the context."""

    def __init__(self, run: Callable[[Job], Result], jobs: Sequence[Job], count: int) -> None:
        self._jobs = jobs
        self._processes: list[BaseProcess] = []
        self._pipes: list[Connection] = []
        context = multiprocessing.get_context("fork")
        try:
            for _ in range(count):
                ours, theirs = context.Pipe()
                helper = context.Process(target=_serve, args=(run, jobs, theirs), daemon=True)
                with forking_helpers():
                    helper.start()
                self._processes.append(helper)
                self._pipes.append(ours)
                theirs.close()  # its only end is then the helper's: a death ends what is read here
        except BaseException:
            self._end()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()

    def results(self) -> list[Result]:
        """What the jobs gave, in order; the first fault is raised."""
        found: dict[int, Result] = {}
        waiting = iter(range(len(self._jobs)))
        busy: dict[Connection, int] = {}
        free = list(self._pipes)
        while len(found) < len(self._jobs):
            for pipe, number in zip(free, waiting, strict=False):
                pipe.send(number)
                busy[pipe] = number
            free = [pipe for pipe in wait(list(busy)) if isinstance(pipe, Connection)]
            for pipe in free:
                found[busy.pop(pipe)] = _answer(pipe)
        return [found[number] for number in range(len(self._jobs))]

    def _end(self) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()


def _serve(run: Callable[[Job], Result], jobs: Sequence[Job], pipe: Connection) -> None:
    """A helper's life: numbers of jobs in, what they gave out, until it is ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent is told, and ends its helpers
    while True:
        number = pipe.recv()
        try:
            pipe.send((run(jobs[number]), None))
        except FlashsmithError as error:
            pipe.send((None, error))


# Any: what helpers send back has no type; it is what `run` gave.
def _answer(pipe: Connection) -> Any:
    try:
        result, error = pipe.recv()
    except EOFError as ended:
        raise EmulationError("lost process", "a process of this launch ended early") from ended
    if error is not None:
        raise error
    return result
