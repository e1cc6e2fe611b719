"""Runs of many chunks in several processes, where blocks do not talk to each other."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable, Sequence
from typing import TypeVar

from flashsmith.emulator.ptx.module import Kernel

PAYS_FROM = 8  # chunks; a process costs about as much as a small chunk

Job = TypeVar("Job")
Result = TypeVar("Result")

# What forked children run: set before the fork, for closures do not travel through pipes.
_work: Callable[[int], object] | None = None


def process_count(kernel: Kernel, chunks: int, wanted: int | None) -> int:
    """How many processes to use: one where blocks may depend on each other, or it does not pay."""
    if blocks_communicate(kernel) or not sys.platform.startswith("linux"):
        return 1
    if multiprocessing.parent_process() is not None:
        return 1  # a worker of someone who has divided the work already
    if wanted is None:
        wanted = (os.cpu_count() or 1) if chunks >= PAYS_FROM else 1
    return max(1, min(wanted, chunks))


def blocks_communicate(kernel: Kernel) -> bool:
    """Whether a block may see what another writes while both run."""
    return any(
        (i.opcode in ("atom", "red") and not i.has("shared"))
        or (i.opcode == "ld" and any(i.has(m) for m in ("acquire", "volatile", "relaxed")))
        for i in kernel.instructions
    )


def run_all(run: Callable[[Job], Result], jobs: Sequence[Job], processes: int) -> list[Result]:
    """The results of `run` on each job, in order; the first fault is raised."""
    if processes == 1:
        return [run(job) for job in jobs]
    global _work
    _work = lambda number: run(jobs[number])  # noqa: E731 - forked children need a plain name
    try:
        with multiprocessing.get_context("fork").Pool(processes) as pool:
            return list(pool.imap(_call, range(len(jobs))))  # type: ignore[arg-type]
    finally:
        _work = None


def _call(number: int) -> object:
    assert _work is not None
    return _work(number)
