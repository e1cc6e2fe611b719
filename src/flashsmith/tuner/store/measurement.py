"""One row of the results: what was measured, on what, with which kernel, and the outcome."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from flashsmith.base.errors import ConfigError, DamagedFile, FlashsmithError
from flashsmith.base.json_text import parse_json
from flashsmith.kernels import parse_config
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.text import problem_fields, problem_from_fields
from flashsmith.tuner.store.outcome import Outcome, outcome_fields, outcome_from_fields

SCHEMA = 2
SCHEMA_OF_0_1 = 1  # which version_0_1.py converts
_MOST_LETTERS = 2000  # of a text of a key: longer than any name, shorter than what could hurt
_MOST_ENVIRONMENT = 20_000
# Facts of the environment that charts and choices reckon with; None where they were not known.
_COUNTS = ("sm_count", "blocks_per_sm", "registers", "spill_bytes", "smem_bytes", "max_sm_mhz")


@dataclass(frozen=True, slots=True, order=True)
class MeasurementKey:
    """What makes two measurements the same one: nothing else does, and each of these does."""

    gpu: str  # `NVIDIA H200`, or `emulator`
    arch: str
    driver: str
    compiler: str
    code: str  # hash of the kernel's machine code; empty for what was never compiled
    config: str  # short form
    problem: AttentionProblem
    protocol: str  # how it was measured: `screen`, `final`, `emulated`


@dataclass(frozen=True, slots=True)
class Measurement:
    """A key, its outcome, and where and when it was obtained."""

    key: MeasurementKey
    outcome: Outcome
    gate: bool = False  # passed all of check/'s cases on this GPU: may be chosen
    when: str = ""  # ISO 8601, UTC
    environment: Mapping[str, object] = field(default_factory=dict)
    is_imported: bool = field(default=False, compare=False)  # it came from a file of someone else

    def to_line(self) -> str:
        """One line of JSON, flat but for the problem and the environment."""
        data: dict[str, object] = {"schema": SCHEMA}
        for f in fields(MeasurementKey):
            data[f.name] = getattr(self.key, f.name)
        data["problem"] = problem_fields(self.key.problem)
        data |= outcome_fields(self.outcome)
        data |= {"gate": self.gate, "when": self.when, "environment": dict(self.environment)}
        return json.dumps(data, sort_keys=True, allow_nan=False)


def measurement_from_line(text: str, where: str, *, is_ours: bool = False) -> Measurement:
    """The measurement of one line; `where` names file and line in the error."""
    try:
        data = parse_json(text)
    except ValueError as error:
        raise DamagedFile(f"{where}: not a line of JSON ({error}); remove the line.") from error
    try:
        return measurement_from_fields(data, is_ours=is_ours)
    except FlashsmithError as error:
        raise DamagedFile(f"{where}: {error} Remove or mend the line.") from error


def measurement_from_fields(data: object, *, is_ours: bool = False) -> Measurement:
    """The measurement that flat data of this or an older version describe; every value is checked.

    Lines of files, rows of foreign databases and rows of one's own store all pass through here. Of
    what comes with the package (`is_ours`) tests have read the configurations and environments.
    """
    if not isinstance(data, dict):
        raise DamagedFile(f"a measurement is an object, this is {type(data).__name__}.")
    if data.get("schema") == SCHEMA_OF_0_1:
        from flashsmith.tuner.store.version_0_1 import converted

        data = converted(data)
    if data.get("schema") != SCHEMA:
        raise DamagedFile(
            f"schema is {str(data.get('schema'))[:40]!r}, this version reads up to {SCHEMA}."
        )
    texts = {f.name: _text(data, f.name) for f in fields(MeasurementKey) if f.name != "problem"}
    if not is_ours and parse_config(texts["config"]).short_form() != texts["config"]:
        raise ConfigError(f"config is {texts['config']!r}, which is not a complete short form.")
    key = MeasurementKey(**texts, problem=problem_from_fields(data.get("problem")))
    gate = data.get("gate")
    if not isinstance(gate, bool):
        raise DamagedFile(f"gate is {str(gate)[:40]!r}; it must be true or false.")
    outcome = outcome_from_fields(data)
    return Measurement(key, outcome, gate, _text(data, "when"), _environment(data, is_ours))


def _text(data: Mapping[str, object], name: str) -> str:
    value = data.get(name)
    if not isinstance(value, str) or len(value) > _MOST_LETTERS:
        raise DamagedFile(
            f"{name} is {str(value)[:40]!r}; it must be a text of at most {_MOST_LETTERS} letters."
        )
    return value


def _environment(data: Mapping[str, object], is_ours: bool) -> Mapping[str, object]:
    found = data.get("environment")
    if not isinstance(found, dict):
        raise DamagedFile("environment is missing, or not an object.")
    if not is_ours and len(json.dumps(found)) > _MOST_ENVIRONMENT:
        raise DamagedFile(f"environment takes more than {_MOST_ENVIRONMENT:,} letters.")
    for name in _COUNTS:
        value = found.get(name)
        is_count = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**40
        if value is not None and not is_count:
            raise DamagedFile(
                f"{name} of the environment is {str(value)[:40]!r}; it must be a count."
            )
    return found
