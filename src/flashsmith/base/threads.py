"""Threads that share a list of work, and drop the rest of it when their caller leaves early."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager


@contextmanager
def dropping_threads(count: int) -> Iterator[ThreadPoolExecutor]:
    """A pool of threads; an error or Ctrl-C in the caller begins nothing more and waits for none.

    What a thread has in hand goes on to its end, behind the caller's back.
    """
    pool = ThreadPoolExecutor(count)
    try:
        yield pool
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    pool.shutdown()
