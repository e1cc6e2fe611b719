"""Measurements as the choice reads them: JSON lines of the user's own, and those shipped."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from flashsmith.base import settings
from flashsmith.base.dtypes import DType
from flashsmith.problem.attention_problem import AttentionProblem

USER_FILE = "measurements.jsonl"  # in the cache folder; the tuner's exchange format
SHIPPED_FOLDER = Path(__file__).parent / "shipped"
NEAR = 1.0  # powers of two that each length of a neighbour may be off

_log = logging.getLogger("flashsmith.choose")


@dataclass(frozen=True, slots=True)
class Measured:
    """What one configuration took on one problem."""

    gpu: str  # "NVIDIA H200"
    problem: AttentionProblem
    config: str  # short form
    median_us: float


class Measurements(Protocol):
    """Something that remembers measurements."""

    @property
    def label(self) -> str:
        """Whose measurements these are, for the reason of a choice."""

    def of_gpu(self, gpu: str) -> Sequence[Measured]:
        """Everything measured on a GPU of that name."""


class MeasuredTable:
    """A file of JSON lines, read when it is first asked; one that is not there is empty."""

    def __init__(self, path: Path, label: str) -> None:
        self.path = path
        self.label = label
        self._by_gpu: dict[str, list[Measured]] | None = None

    def of_gpu(self, gpu: str) -> Sequence[Measured]:
        """Everything measured on a GPU of that name."""
        if self._by_gpu is None:
            self._by_gpu = {}
            for measured in _read_lines(self.path):
                self._by_gpu.setdefault(measured.gpu, []).append(measured)
        return self._by_gpu.get(gpu, ())


@cache
def _table(path: Path, label: str) -> MeasuredTable:
    return MeasuredTable(path, label)


def known_measurements(gpu: str) -> tuple[Measurements, ...]:
    """What to ask about a GPU, in order: the user's own, then what the package ships."""
    slug = "".join(c if c.isalnum() else "_" for c in gpu.lower())
    return (
        _table(settings.cache_dir() / USER_FILE, "measured on this machine"),
        _table(SHIPPED_FOLDER / f"{slug}.jsonl", "shipped measurement"),
    )


def distance(a: AttentionProblem, b: AttentionProblem) -> float:
    """How unlike two problems are, in powers of two; infinite where no kernel serves both."""
    if (a.d_head, a.causal) != (b.d_head, b.causal):
        return math.inf
    if a.causal and _ends_bottom_right(a) is not _ends_bottom_right(b):
        return math.inf
    pairs = (
        (a.q_len, b.q_len),
        (a.k_len, b.k_len),
        (a.batch * a.heads, b.batch * b.heads),
        (a.heads // max(a.kv_heads, 1), b.heads // max(b.kv_heads, 1)),
    )
    steps = [abs(math.log2(max(x, 1) / max(y, 1))) for x, y in pairs]
    if max(steps[:2]) > NEAR:
        return math.inf
    return sum(steps) + (0.01 if a.dtype is not b.dtype else 0.0)


def _ends_bottom_right(problem: AttentionProblem) -> bool:
    return problem.diagonal_offset == problem.k_len - problem.q_len


def _read_lines(path: Path) -> list[Measured]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    found = []
    for number, line in enumerate(lines, start=1):
        try:
            found.append(_measured(json.loads(line)))
        except (ValueError, KeyError, TypeError) as error:
            _log.warning("%s line %d is no measurement (%s); it is left out", path, number, error)
    return found


def _measured(fields: dict[str, Any]) -> Measured:  # Any: the values of a JSON object
    problem = dict(fields["problem"])
    problem["dtype"] = DType[problem["dtype"]]
    return Measured(
        gpu=fields["gpu"],
        problem=AttentionProblem(**problem),
        config=fields["config"],
        median_us=float(fields["median_us"]),
    )
