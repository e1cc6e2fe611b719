"""What a process does first when it finds itself a fork of another: locks and devices of its own.

A fork copies locks that threads of the parent hold, and shares mappings that both would write.
Whoever keeps such a thing registers how a child gets a fresh one.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_in_child: list[Callable[[], None]] = []
_forking_helpers: set[int] = set()  # threads that fork helpers, which share what their parent has


def call_in_forked_child(callback: Callable[[], None]) -> Callable[[], None]:
    """Registers a function without arguments to run in every forked child but our own helpers."""
    _in_child.append(callback)
    return callback


@contextmanager
def forking_helpers() -> Iterator[None]:
    """Around the fork of processes that work for their parent, in its memory, on purpose."""
    thread = threading.get_ident()
    _forking_helpers.add(thread)
    try:
        yield
    finally:
        _forking_helpers.discard(thread)


def _run_callbacks() -> None:
    is_helper = threading.get_ident() in _forking_helpers
    _forking_helpers.clear()
    if not is_helper:
        for callback in _in_child:
            callback()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_run_callbacks)
