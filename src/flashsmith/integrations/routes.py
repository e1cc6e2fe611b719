"""What became of calls of torch's attention: where they came from, who computed them, and why."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

_INSIDE = ("flashsmith", "torch", "contextlib")


@dataclass(frozen=True, slots=True)
class Route:
    """Calls of one kind from one line of code."""

    site: str  # file and line of the first caller that is not torch
    shapes: str  # of query, key and value, with their element type and place
    choice: str  # "flashsmith" or "torch"
    reason: str


class Routes:
    """The routes that calls took, counted; `table()` or `str()` shows them."""

    def __init__(self) -> None:
        self._counts: Counter[Route] = Counter()
        self._lock = threading.Lock()

    def add(self, tensors: tuple[object, ...], choice: str, reason: str) -> None:
        """Counts a call of whoever called torch's function."""
        route = Route(_call_site(), _shapes_of(tensors), choice, reason)
        with self._lock:
            self._counts[route] += 1

    def counts(self) -> dict[Route, int]:
        """How many calls took each route, in the order of their first calls."""
        with self._lock:
            return dict(self._counts)

    def table(self) -> str:
        """The routes, one a line: calls, who computed them, shapes, call site, reason."""
        rows = [("calls", "by", "query, key, value", "called from", "reason")]
        rows += [
            (f"{count:,}", route.choice, route.shapes, route.site, route.reason)
            for route, count in self.counts().items()
        ]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in rows
        ]
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.table()


def _call_site() -> str:
    frame = sys._getframe(1)
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] in _INSIDE:
        frame = frame.f_back
    path = Path(frame.f_code.co_filename)
    return f"{'/'.join(path.parts[-2:])}:{frame.f_lineno}"


def _shapes_of(tensors: tuple[object, ...]) -> str:
    dense = [t for t in tensors if isinstance(t, Tensor) and not t.is_nested]
    if len(dense) < len(tensors) or not dense:
        return ", ".join(type(t).__name__ for t in tensors)
    shapes = [list(t.shape) for t in dense]
    if shapes.count(shapes[0]) == len(shapes):
        shapes = shapes[:1]
    kind = str(dense[0].dtype).removeprefix("torch.")
    return f"{', '.join(map(str, shapes))} {kind} {dense[0].device.type}"
