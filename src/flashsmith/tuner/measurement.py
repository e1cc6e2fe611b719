"""One row of the results: what was measured, on what, with which kernel, and the outcome."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields

from flashsmith.base.dtypes import DType
from flashsmith.base.errors import ConfigError, DamagedFile, FlashsmithError
from flashsmith.base.json_text import parse_json
from flashsmith.config import parse_config
from flashsmith.problem.attention_problem import AttentionProblem
from flashsmith.tuner.outcome import Outcome, outcome_fields, outcome_from_fields

SCHEMA = 1
_PROBLEM_FIELDS = tuple(f.name for f in fields(AttentionProblem))


@dataclass(frozen=True, slots=True, order=True)
class MeasurementKey:
    """What makes two measurements the same one: nothing else does, and each of these does."""

    gpu: str  # `NVIDIA H200`, or `emulator`
    arch: str
    driver: str
    compiler: str
    source_hash: str  # of the kernel's unit and headers; empty for what was never compiled
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
    environment: dict[str, object] = field(default_factory=dict)

    def to_line(self) -> str:
        """One line of JSON, flat but for the problem and the environment."""
        data: dict[str, object] = {"schema": SCHEMA}
        for f in fields(MeasurementKey):
            data[f.name] = getattr(self.key, f.name)
        data["problem"] = problem_fields(self.key.problem)
        data |= outcome_fields(self.outcome)
        data |= {"gate": self.gate, "when": self.when, "environment": self.environment}
        return json.dumps(data, sort_keys=True, allow_nan=False)


def measurement_from_line(text: str, where: str) -> Measurement:
    """The measurement of one line; `where` names file and line in the error."""
    try:
        data = parse_json(text)
    except ValueError as error:
        raise DamagedFile(f"{where}: not a line of JSON ({error}); remove the line.") from error
    try:
        return _from_data(data)
    except FlashsmithError as error:
        raise DamagedFile(f"{where}: {error} Remove or mend the line.") from error


def problem_fields(problem: AttentionProblem) -> dict[str, object]:
    """A problem as flat data, the element type by name."""
    return {**asdict(problem), "dtype": problem.dtype.name}


def problem_from_fields(data: object) -> AttentionProblem:
    """The problem that `problem_fields` wrote, checked."""
    if not isinstance(data, dict) or set(data) != set(_PROBLEM_FIELDS):
        raise DamagedFile(f"problem is {data!r}; its fields are {', '.join(_PROBLEM_FIELDS)}.")
    dtype = DType.__members__.get(str(data["dtype"]))
    if dtype is None:
        raise DamagedFile(f"dtype is {data['dtype']!r}; it is FP16 or BF16.")
    for name, kinds in (
        ("causal", (bool,)),
        ("diagonal", (int, type(None))),
        ("scale", (int, float, type(None))),
    ):
        if not isinstance(data[name], kinds):
            raise DamagedFile(f"{name} of the problem is {data[name]!r}.")
    return AttentionProblem(**{**data, "dtype": dtype})


def _from_data(data: object) -> Measurement:
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        found = data.get("schema") if isinstance(data, dict) else type(data).__name__
        raise DamagedFile(f"schema is {found!r}, this version reads {SCHEMA}.")
    texts = {}
    for f in fields(MeasurementKey):
        if f.name == "problem":
            continue
        if not isinstance(data.get(f.name), str):
            raise DamagedFile(f"{f.name} is {data.get(f.name)!r}; it is a text.")
        texts[f.name] = data[f.name]
    if parse_config(texts["config"]).short_form() != texts["config"]:
        raise ConfigError(f"config is {texts['config']!r}; it is not a whole short form.")
    key = MeasurementKey(**texts, problem=problem_from_fields(data.get("problem")))
    gate, when, environment = data.get("gate"), data.get("when"), data.get("environment")
    if not isinstance(gate, bool) or not isinstance(when, str) or not isinstance(environment, dict):
        raise DamagedFile("gate, when or environment is missing or of the wrong type.")
    return Measurement(key, outcome_from_fields(data), gate, when, environment)
