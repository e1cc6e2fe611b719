"""Where a report's numbers come from: given files, the user's results, or shipped records."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from flashsmith.base import settings
from flashsmith.base.errors import ArgumentError, DamagedFile
from flashsmith.base.json_text import parse_json
from flashsmith.measure.record import Record, record_from_line
from flashsmith.problem.attention import AttentionProblem
from flashsmith.tuner.run.counting import Place
from flashsmith.tuner.store.exchange import read_any
from flashsmith.tuner.store.measurement import Measurement, measurement_from_line

# What the result of a prediction holds: a place, and the quantity that it follows from.
PLACE, OVER_FIRST, LIMIT = "predicted_place", "predicted_cycles_over_first", "predicted_limit"
COUNTED = "duration_us"  # what the result of a profile holds
_PROBLEM = {"suite", "name", "batch", "heads", "kv_heads", "q_len", "k_len", "d_head"}
_PROBLEM |= {"dtype"}
_IN_WHEEL = Path(__file__).parent / "shipped"
_IN_CHECKOUT = Path(__file__).parents[3] / "benchmarks" / "results"


@dataclass(frozen=True, slots=True)
class ReportData:
    """Everything a report may show, and where it is from."""

    records: tuple[Record, ...]
    measurements: tuple[Measurement, ...]
    source: str
    # The predicted place of a configuration on a problem, 1 for the one predicted fastest.
    places: Mapping[tuple[str, AttentionProblem], Place] = field(default_factory=dict)
    counted: tuple[Record, ...] = ()  # by a profiler
    unreached: int = 0  # candidates of a tuning run that its budget ended before

    @property
    def device(self) -> str:
        """The GPU that the times are of, or an empty text."""
        names = [str(r.environment["device"]) for r in (*self.records, *self.counted)]
        return next(iter([*names, *(m.key.gpu for m in self.measurements)]), "")

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to show."""
        return not self.records and not self.measurements and not self.counted


def gather(paths: Sequence[Path]) -> ReportData:
    """The data of the given files; without any, the user's results; without those, shipped ones."""
    if paths:
        return _read(paths, ", ".join(path.name for path in paths))
    own = settings.results_path()
    if own.exists():
        found = _read([own], str(own))
        if not found.is_empty:
            return found
    shipped = shipped_records()
    if not shipped:
        raise ArgumentError(
            "No records were given, nothing was tuned here, and none are shipped; give a file, or "
            "run `flashsmith tune` first."
        )
    return _read(shipped, "the H200 records that come with flashsmith")


def shipped_records() -> list[Path]:
    """Committed records: beside the package in a checkout, inside it in a wheel."""
    folder = _IN_WHEEL if _IN_WHEEL.is_dir() else _IN_CHECKOUT
    return sorted((folder / "h200").glob("*.jsonl"))


def _read(paths: Sequence[Path], source: str) -> ReportData:
    records: list[Record] = []
    measurements: list[Measurement] = []
    counted: list[Record] = []
    places: dict[tuple[str, AttentionProblem], Place] = {}
    seen: set[str] = set()
    for path in paths:
        if path.suffix != ".jsonl":
            measurements += read_any(path)
            continue
        for number, line in _lines(path):
            if line in seen:  # two files may hold the same run: it was measured once
                continue
            seen.add(line)
            for found in _parse(line, f"{path}, line {number}"):
                if isinstance(found, Measurement):
                    measurements.append(found)
                elif PLACE in found.result:
                    places[found.what["name"], found.problem] = _place(found)
                elif COUNTED in found.result:
                    counted.append(found)
                else:
                    records.append(found)
    return ReportData(tuple(records), tuple(measurements), source, places, tuple(counted))


def _place(record: Record) -> Place:
    """A predicted place; what older records do not say of it is unknown."""
    over_first = record.result.get(OVER_FIRST)
    known = over_first if isinstance(over_first, int | float) else math.nan
    return Place(record.result[PLACE], known, str(record.result.get(LIMIT) or ""))


def _lines(path: Path) -> list[tuple[int, str]]:
    """The lines that hold something, with their numbers."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        return [(number, line) for number, line in enumerate(lines, start=1) if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise ArgumentError(f"{path} cannot be read ({error}); give a records file.") from error


def _parse(line: str, where: str) -> Sequence[Record | Measurement]:
    """Records of times or counters, or a tuner's measurement; others have no chart here."""
    try:
        data = parse_json(line)
    except ValueError as error:
        raise DamagedFile(f"{where}: not a line of JSON ({error}); remove the line.") from error
    if not isinstance(data, dict):
        raise DamagedFile(f"{where}: a record is an object; remove the line.")
    if "config" in data and "outcome" in data and "schema" in data:
        return [measurement_from_line(line, where)]
    what, result = data.get("what"), data.get("result")
    if not isinstance(what, dict) or not isinstance(result, dict) or "q_len" not in what:
        return []
    if not {"median_us", PLACE, COUNTED} & set(result):
        return []
    lacking = sorted(_PROBLEM - set(what))
    if lacking:
        raise DamagedFile(f"{where}: 'what' lacks {', '.join(lacking)}; remove or mend the line.")
    record = record_from_line(line, where)
    _require_readable(record, where)
    return [record]


def _require_readable(record: Record, where: str) -> None:
    """Raises where a field that charts read is of another type than ours."""
    texts = [record.what["suite"], record.what["name"]]
    counts = [record.result.get("rounds", 1), record.result.get(PLACE, 1)]
    counters = record.result.values() if COUNTED in record.result else ()
    try:
        has_problem = isinstance(record.problem, AttentionProblem)
    except (KeyError, TypeError, ValueError):
        has_problem = False
    are_texts = all(isinstance(text, str) for text in texts)
    are_numbers = all(isinstance(count, int) for count in counts) and all(
        isinstance(count, int | float | None) for count in counters
    )
    if not (has_problem and are_texts and are_numbers):
        raise DamagedFile(
            f"{where}: suite, name, shape, rounds, place or a counter is of a wrong type; remove "
            f"or mend the line."
        )
