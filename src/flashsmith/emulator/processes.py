"""Runs of many chunks in several processes, where blocks do not talk to each other."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from flashsmith.emulator.ptx.module import Kernel

PAYS_SECONDS = 0.5  # work that is worth starting processes for

Job = TypeVar("Job")
Result = TypeVar("Result")

# What forked children run: set before the fork, for closures do not travel through pipes.
_work: Callable[[int], object] | None = None


def process_count(kernel: Kernel, chunks: int, wanted: int | None) -> int:
    """How many processes a launch may use: one where blocks may depend on each other."""
    if blocks_communicate(kernel) or not sys.platform.startswith("linux"):
        return 1
    if multiprocessing.parent_process() is not None:
        return 1  # a worker of someone who has divided the work already
    if wanted is None:
        # A fork while other threads run may copy a lock that nobody will open.
        wanted = (os.cpu_count() or 1) if threading.active_count() == 1 else 1
    return max(1, min(wanted, chunks))


def blocks_communicate(kernel: Kernel) -> bool:
    """Whether a block may see what another writes while both run."""
    return any(
        (i.opcode in ("atom", "red") and not i.has("shared"))
        or (i.opcode == "ld" and any(i.has(m) for m in ("acquire", "volatile", "relaxed")))
        for i in kernel.instructions
    )


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
    global _work
    _work = lambda number: run(jobs[number])  # noqa: E731 - forked children need a plain name
    try:
        with multiprocessing.get_context("fork").Pool(min(processes, len(jobs))) as pool:
            # What children send back has no type: it is what `run` gave.
            return done + list(pool.imap(_call, range(len(jobs))))  # type: ignore[arg-type]
    finally:
        _work = None


def _call(number: int) -> object:
    assert _work is not None
    return _work(number)
