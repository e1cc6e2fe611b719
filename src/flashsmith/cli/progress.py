"""A progress bar on stderr, so that data on stdout stay clean; silent when nobody watches."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Progress(Protocol):
    """Moves a bar; `text` is what is worth saying of the work so far."""

    def __call__(self, done: int, total: int, text: str = "") -> None:
        """Shows that `done` of `total` are done."""


@contextmanager
def progress_bar(title: str) -> Iterator[Progress]:
    """Gives a function that moves the bar."""
    if not sys.stderr.isatty():
        yield lambda done, total, text="": None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as RichProgress

    columns = (
        TextColumn(title),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[text]}"),
    )
    with RichProgress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=None, text="")

        def move(done: int, total: int, text: str = "") -> None:
            bar.update(task, completed=done, total=total, text=text)

        yield move
