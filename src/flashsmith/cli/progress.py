"""A progress bar on stderr, so that data on stdout stay clean; silent when nobody watches."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Protocol


class Progress(Protocol):
    """Moves a bar; `text` is what is worth saying of the work so far."""

    def __call__(self, done: int, total: int, text: str = "") -> None:
        """Shows that `done` of `total` are done."""


@contextmanager
def progress_steps() -> Iterator[Callable[[str, int, int, str], None]]:
    """Gives a function that moves a bar, told which step of the work it stands for."""
    with ExitStack() as open_bar:
        current = ""
        move: Progress = _nobody_watches

        def moved(step: str, done: int, total: int, text: str) -> None:
            nonlocal current, move
            if step != current:
                open_bar.close()
                current, move = step, open_bar.enter_context(progress_bar(step))
            move(done, total, text)

        yield moved


def _nobody_watches(done: int, total: int, text: str = "") -> None:
    pass


@contextmanager
def progress_bar(title: str) -> Iterator[Progress]:
    """Gives a function that moves the bar."""
    if not sys.stderr.isatty():
        yield _nobody_watches
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
