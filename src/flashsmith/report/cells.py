"""Records that state a cell of the papers' grid with the rates of all contenders on one line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flashsmith.base.dtypes import DType
from flashsmith.base.errors import DamagedFile
from flashsmith.bench.ladder import LADDER
from flashsmith.config.parse import looks_like_config
from flashsmith.measure.record import Record
from flashsmith.problem.attention_problem import AttentionProblem
from flashsmith.problem.cost import forward_cost
from flashsmith.tuner.measurement import problem_fields

TOKENS, WIDTH = 16384, 2048  # batch x length and heads x d_head of the grid
OURS_OVER_IT = "ours_over_it"  # the ratio within the rounds, where a record of a peer states it
_LADDER = "ladder"
_REGIMES = ("burst", "sustained")
_NAMES = {"ours": "flashsmith", "cuDNN": "cuDNN"}
Line = Mapping[str, Any]  # Any: a line of JSON


def is_cell(data: Line) -> bool:
    """Whether a line is a cell of the grid: a comparison, or a ladder at one length."""
    return data.get("part") in (*_REGIMES, _LADDER) and "length" in data


def records_of_cell(data: Line, where: str) -> list[Record]:
    """A record for each contender or step; `where` names file and line in the error."""
    try:
        problem = _problem(data)
        if data["part"] == _LADDER:
            rates = {name: float(data[name]) for name in data if looks_like_config(name)}
            return [_record(data, problem, LADDER, name, rate) for name, rate in rates.items()]
        rates = {key: float(data["tflops"][key]) for key in _NAMES}
        return [_record(data, problem, "grid", key, rate) for key, rate in rates.items()]
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise DamagedFile(f"{where}: a cell lacks {error}; remove or mend the line.") from error


def _problem(data: Line) -> AttentionProblem:
    d_head, length = int(data["d_head"]), int(data["length"])
    heads = WIDTH // d_head
    batch = max(TOKENS // length, 1)
    return AttentionProblem(
        batch, heads, heads, length, length, d_head, DType.BF16, causal=bool(data["causal"])
    )


def _record(data: Line, problem: AttentionProblem, suite: str, name: str, rate: float) -> Record:
    control = float(data.get("control") or 1.0)
    what = {"suite": suite, "name": _NAMES.get(name, name), **problem_fields(problem)}
    result = {
        "regime": data["part"] if data["part"] in _REGIMES else "burst",
        "median_us": forward_cost(problem).flops / rate / 1e6,
        "tflops": rate,
        "control": control,
        "void": abs(control - 1) > 0.01,
    }
    if name == "ours":
        what["config"] = str(data.get("config", ""))
    if name == "cuDNN" and data.get("over_cudnn"):
        result[OURS_OVER_IT] = float(data["over_cudnn"])
    names = {"device": "gpu", "date": "date", "commit": "commit"}
    environment = {ours: str(data.get(theirs, "")) for ours, theirs in names.items()}
    return Record(what, result, environment)
