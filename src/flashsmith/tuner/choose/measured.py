"""Measurements as the choice reads them: the user's own results, and those shipped."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from flashsmith.base import settings
from flashsmith.base.errors import FlashsmithError
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.needs import changed_scores
from flashsmith.tuner.store.measurement import Measurement
from flashsmith.tuner.store.outcome import Timed

SHIPPED_FOLDER = Path(__file__).parents[2] / "shipped"  # one file of JSON lines a GPU
NEAR = 1.0  # powers of two that each length of a neighbour may be off
FLOOR_NEAR = 2.0  # the same for what may take the place of a neighbour's winner
OTHER_DTYPE = 0.01  # a tie-break: FP16 and BF16 kernels take the same time

_log = logging.getLogger("flashsmith.choose")


@dataclass(frozen=True, slots=True)
class MeasuredConfig:
    """What one configuration took on one problem."""

    problem: AttentionProblem
    config: str  # short form
    median_us: float
    blocks_at_once: int = 0  # that the GPU it ran on holds; 0: not known


@dataclass(frozen=True, slots=True)
class MeasuredTable:
    """Whose measurements these are, and how to get them; they are read when first asked for."""

    label: str
    read: Callable[[], Sequence[Measurement]]
    must_know: MeasuredTable | None = None  # whose winner it must have timed to be believed

    def of_gpu(self, gpu: str) -> Sequence[MeasuredConfig]:
        """Everything choosable that was measured on a GPU of that name."""
        return [
            MeasuredConfig(
                item.key.problem, item.key.config, item.outcome.median_us, _blocks_at_once(item)
            )
            for item in self.read()
            if item.gate and item.key.gpu == gpu and isinstance(item.outcome, Timed)
        ]

    def timed(self, gpu: str, problem: AttentionProblem) -> Sequence[str]:
        """The short forms of all that was timed on a problem, chosen or not."""
        return [
            item.key.config
            for item in self.read()
            if item.key.problem == problem
            and item.key.gpu == gpu
            and isinstance(item.outcome, Timed)
        ]


def _blocks_at_once(item: Measurement) -> int:
    counts = [item.environment.get(name) for name in ("sm_count", "blocks_per_sm")]
    return math.prod(count if isinstance(count, int) else 0 for count in counts)


def known_measurements(gpu: str) -> tuple[MeasuredTable, ...]:
    """What to ask about a GPU, in order: measured here, imported from others, shipped."""
    results, shipped = settings.results_path(), shipped_table(gpu)
    return (
        MeasuredTable(
            "measured on this machine", lambda: _of_origin(results, imported=False), shipped
        ),
        MeasuredTable("imported measurement", lambda: _of_origin(results, imported=True), shipped),
        shipped,
    )


def shipped_table(gpu: str) -> MeasuredTable:
    """What comes with the package for a GPU; empty for those that none was made for."""
    slug = "".join(c if c.isalnum() else "_" for c in gpu.lower())
    path = SHIPPED_FOLDER / f"{slug}.jsonl"
    return MeasuredTable("shipped measurement", lambda: _read(path))


def _of_origin(path: Path, *, imported: bool) -> Sequence[Measurement]:
    return [item for item in _read(path) if item.is_imported is imported]


def choosable(path: Path) -> Sequence[Measurement]:
    """The measurements of a file that a choice may be made by."""
    return [item for item in _read(path) if item.gate and isinstance(item.outcome, Timed)]


def distance(a: AttentionProblem, b: AttentionProblem) -> float:
    """How unlike two problems are, in powers of two; infinite where one says nothing of the other.

    Layout and scale do not count: they change neither the kernel nor its work.
    """
    if a.operation != b.operation or a.d_head != b.d_head or not a.mask.is_like(b.mask):
        return math.inf
    if changed_scores(a) != changed_scores(b):
        return math.inf
    steps = _steps(a, b)
    if max(steps[:2]) > NEAR:
        return math.inf
    return sum(steps) + (OTHER_DTYPE if a.dtype is not b.dtype else 0.0)


def states_a_floor(a: AttentionProblem, b: AttentionProblem) -> bool:
    """Whether a kernel that took a time on `b` does no worse on `a`, in proportion to the work.

    Starting and ending a tile weighs more where there are fewer keys, so `b` must not have more.
    """
    like = distance(replace(a, q_len=b.q_len, k_len=b.k_len), b) < math.inf
    return like and b.k_len <= a.k_len and max(_steps(a, b)[:2]) <= FLOOR_NEAR


def _steps(a: AttentionProblem, b: AttentionProblem) -> list[float]:
    """Powers of two between lengths of Q, of K, heads in all, and heads of a group."""
    pairs = (
        (a.q_len, b.q_len),
        (a.k_len, b.k_len),
        (a.batch * a.heads, b.batch * b.heads),
        (a.heads // max(a.kv_heads, 1), b.heads // max(b.kv_heads, 1)),
    )
    return [abs(math.log2(max(x, 1) / max(y, 1))) for x, y in pairs]


def _read(path: Path) -> Sequence[Measurement]:
    """The measurements of a file as it is now; none if it is not there, or (said) damaged."""
    if not path.exists():
        return ()
    written = (path, path.with_name(f"{path.name}-wal"))  # SQLite writes beside its file first
    return _read_once(path, tuple(p.stat().st_mtime_ns for p in written if p.exists()))


@cache
def _read_once(path: Path, stamps: tuple[int, ...]) -> Sequence[Measurement]:
    # Imported here: most calls find no file of their own to read, and SQLite takes its time.
    try:
        if path.suffix == ".jsonl":
            from flashsmith.tuner.store.exchange import read_lines

            return read_lines(path, is_ours=path.parent == SHIPPED_FOLDER)
        from flashsmith.tuner.store.database import read_store

        return read_store(path)
    except FlashsmithError as error:
        _log.warning("%s; its measurements are left out", error)
        return ()
