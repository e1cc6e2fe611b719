"""Measurements as JSON lines: written one at a time, read back with every field checked."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from flashsmith.base.errors import DamagedFile
from flashsmith.base.json_text import parse_json
from flashsmith.base.loose_types import Json
from flashsmith.base.whole_file import named_in_errors
from flashsmith.measure.environment import Environment
from flashsmith.measure.interleaved import Comparison, Timed
from flashsmith.problem.attention import FACTS, AttentionProblem
from flashsmith.problem.text import (
    problem_fields,
    problem_from_fields,
    without_absent,
)

SCHEMA = 2
_SCHEMA_OF_0_1 = 1  # wrote every field of the problem, and the scale as a number
Flat = Mapping[str, Json]
_RESULT_NUMBERS = ("median_us", "p20_us", "p80_us", "ratio", "ratio_p20", "ratio_p80", "control")
_SECTIONS = ("what", "result", "environment")


@dataclass(frozen=True, slots=True)
class Record:
    """One measurement: what was measured, what came out, and on what."""

    what: Flat
    result: Flat
    environment: Flat

    @property
    def problem(self) -> AttentionProblem:
        """The problem that the record is about; it must hold one."""
        return problem_from_fields({n: v for n, v in self.what.items() if n in FACTS})

    def to_line(self) -> str:
        """The record as one line of JSON, without its end."""
        sections = {name: dict(getattr(self, name)) for name in _SECTIONS}
        return json.dumps({"schema": SCHEMA, **sections}, allow_nan=False)


def records_of(
    comparison: Comparison,
    problem: AttentionProblem,
    environment: Environment,
    *,
    suite: str,
    flops: float,
) -> list[Record]:
    """A record for every contender of one interleaved run on one problem."""
    return [
        Record(
            what={"suite": suite, "name": timed.name, **problem_fields(problem)},
            result=_result(comparison, timed, flops),
            environment=asdict(environment),
        )
        for timed in comparison.timed
    ]


def append_records(path: Path, records: Iterable[Record]) -> None:
    """Adds records to a file; each line is written whole."""
    lines = "".join(record.to_line() + "\n" for record in records)
    with named_in_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab", buffering=0) as file:
            length = file.tell()
            try:
                _write_all(file, lines.encode())
            except OSError:
                file.truncate(length)  # half a line would make the file unreadable
                raise


def _write_all(file: io.FileIO, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[file.write(left) :]


def read_records(path: Path) -> list[Record]:
    """The records of a file; raises `DamagedFile` with the line and the field that is wrong."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DamagedFile(f"{path} cannot be read: {error}.") from error
    return [
        record_from_line(line, f"{path}, line {number}")
        for number, line in enumerate(lines, start=1)
        if line.strip()
    ]


def _result(comparison: Comparison, timed: Timed, flops: float) -> Flat:
    clocks = [state.sm_mhz for state in comparison.states if state is not None]
    return {
        "regime": comparison.regime,
        "median_us": timed.time_us.median,
        "p20_us": timed.time_us.p20,
        "p80_us": timed.time_us.p80,
        "rounds": timed.time_us.rounds,
        "tflops": flops / timed.time_us.median / 1e6,
        "ratio": timed.ratio.median,
        "ratio_p20": timed.ratio.p20,
        "ratio_p80": timed.ratio.p80,
        "control": comparison.control.median,
        "void": comparison.is_void,
        "attempts": comparison.attempts,
        "noise": comparison.is_noise(timed),
        "sm_mhz_low": min(clocks, default=None),
        "sm_mhz_high": max(clocks, default=None),
        "clocks_moved": comparison.clocks_moved,
    }


def record_from_line(line: str, where: str) -> Record:
    """The record of one line; `where` names file and line in the error."""
    try:
        data = parse_json(line)
    except ValueError as error:
        raise DamagedFile(f"{where}: not JSON: {error}.") from error
    if not isinstance(data, dict):
        raise DamagedFile(f"{where}: a record is an object, this is {type(data).__name__}.")
    if data.get("schema") not in (_SCHEMA_OF_0_1, SCHEMA):
        raise DamagedFile(
            f"{where}: schema is {str(data.get('schema'))[:40]!r}; this version reads up to "
            f"{SCHEMA}."
        )
    for name in _SECTIONS:
        if not isinstance(data.get(name), dict):
            raise DamagedFile(f"{where}: field {name!r} is missing or not an object.")
    for name in _RESULT_NUMBERS:
        value = data["result"].get(name, 1.0)
        if isinstance(value, bool) or not isinstance(value, int | float) or not _is_above_0(value):
            raise DamagedFile(
                f"{where}: field 'result.{name}' is {value!r}; it must be a number above 0."
            )
    for name in ("device", "date", "commit"):
        if not isinstance(data["environment"].get(name), str):
            raise DamagedFile(f"{where}: field 'environment.{name}' is missing or not a text.")
    what = data["what"] if data["schema"] == SCHEMA else _converted(data["what"])
    return Record(what, data["result"], data["environment"])


def _converted(what: Flat) -> Flat:
    """What version 0.1 wrote, without what is absent."""
    scale, d_head = what.get("scale"), what.get("d_head")
    is_usual = (
        isinstance(scale, float) and isinstance(d_head, int) and math.isclose(scale**2 * d_head, 1)
    )
    kept = {name: value for name, value in what.items() if not (name == "scale" and is_usual)}
    return without_absent(kept)


def _is_above_0(value: float) -> bool:
    return math.isfinite(value) and value > 0
