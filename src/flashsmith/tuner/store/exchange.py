"""Measurements as files that people send each other: JSON lines, checked on the way in."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from flashsmith.base.errors import ArgumentError
from flashsmith.base.whole_file import written_whole
from flashsmith.problem.attention import AttentionProblem
from flashsmith.tuner.store.measurement import Measurement, MeasurementKey, measurement_from_line
from flashsmith.tuner.store.outcome import Timed
from flashsmith.tuner.store.stale import stale_measurements


def write_lines(measurements: Iterable[Measurement], path: Path) -> int:
    """Writes one line a measurement, beside the place and then renamed; returns how many."""
    lines = [m.to_line() for m in measurements]
    with written_whole(path) as beside:
        beside.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return len(lines)


def read_lines(path: Path) -> list[Measurement]:
    """Every measurement of a file; the first line that is none is named in the error."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ArgumentError(f"{path} cannot be read ({error}); give a JSON lines file.") from error
    return [
        measurement_from_line(line, f"{path} line {number}")
        for number, line in enumerate(text.splitlines(), start=1)
        if line.strip()
    ]


def read_any(path: Path) -> list[Measurement]:
    """The measurements of a JSON lines file or of a results file."""
    if not path.exists():
        raise ArgumentError(f"{path} does not exist; give a results file or a JSON lines file.")
    with path.open("rb") as file:
        is_store = file.read(16) == b"SQLite format 3\0"
    if not is_store:
        return read_lines(path)
    from flashsmith.tuner.store.database import read_store  # here: reading lines needs no SQLite

    return read_store(path, is_foreign=True)


def choosable_table(measurements: Iterable[Measurement], gpu: str) -> list[Measurement]:
    """What a choice may be made by on a GPU: gated times of kernels as they are now."""
    timed = [m for m in measurements if m.gate and isinstance(m.outcome, Timed)]
    mine = [m for m in timed if m.key.gpu == gpu]
    stale = {m.key for m in stale_measurements(mine)}
    return [m for m in mine if m.key not in stale]


@dataclass(frozen=True, slots=True)
class Difference:
    """One configuration on one problem in two sets of measurements."""

    config: str
    problem: AttentionProblem
    before_us: float | None
    after_us: float | None

    @property
    def ratio(self) -> float | None:
        """After over before; below 1 is faster."""
        if self.before_us is None or self.after_us is None:
            return None
        return self.after_us / self.before_us


def differences(before: Sequence[Measurement], after: Sequence[Measurement]) -> list[Difference]:
    """What changed between two sets, matched by GPU, configuration, problem and protocol."""
    old, new = _times(before), _times(after)
    return [
        Difference(key.config, key.problem, old.get(key), new.get(key))
        for key in sorted({*old, *new}, key=lambda key: (key.config, str(key.problem)))
        if old.get(key) != new.get(key)
    ]


def _times(measurements: Sequence[Measurement]) -> dict[MeasurementKey, float]:
    """Median times under keys that forget driver, compiler and code: the things that changed."""
    times = {}
    for m in measurements:
        if isinstance(m.outcome, Timed):
            k = m.key
            same = replace(k, driver="", compiler="", code="")
            times[same] = m.outcome.median_us
    return times
