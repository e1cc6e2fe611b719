"""Records that state a cell of the papers' grid with the rates of all contenders on one line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from flashsmith.base.dtypes import DType
from flashsmith.base.errors import DamagedFile
from flashsmith.measure.record import Record
from flashsmith.problem.attention_problem import AttentionProblem
from flashsmith.problem.cost import forward_cost
from flashsmith.tuner.measurement import problem_fields

TOKENS, WIDTH = 16384, 2048  # batch x length and heads x d_head of the grid
_REGIMES = ("burst", "sustained")
_NAMES = {"ours": "flashsmith", "cuDNN": "cuDNN"}


def is_cell(data: Mapping[str, Any]) -> bool:  # Any: a line of JSON
    """Whether a line is a cell of the grid."""
    return data.get("part") in _REGIMES and isinstance(data.get("tflops"), dict)


def records_of_cell(data: Mapping[str, Any], where: str) -> list[Record]:
    """Our record and the peer's; `where` names file and line in the error."""
    try:
        d_head, length = int(data["d_head"]), int(data["length"])
        heads = WIDTH // d_head
        problem = AttentionProblem(
            *(max(TOKENS // length, 1), heads, heads, length, length, d_head, DType.BF16),
            causal=bool(data["causal"]),
        )
        flops = forward_cost(problem).flops
        rates = {name: float(data["tflops"][key]) for key, name in _NAMES.items()}
        times = {name: flops / rate / 1e6 for name, rate in rates.items()}
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise DamagedFile(f"{where}: a cell lacks {error}; remove or mend the line.") from error
    control = float(data.get("control") or 1.0)
    made = [
        Record(
            what={"suite": "grid", "name": name, **problem_fields(problem)},
            result={
                "regime": data["part"],
                "median_us": times[name],
                "tflops": rates[name],
                "control": control,
                "void": abs(control - 1) > 0.01,
            },
            environment={
                "device": str(data.get("gpu", "")),
                "date": str(data.get("date", "")),
                "commit": str(data.get("commit", "")),
            },
        )
        for name in rates
    ]
    mine, theirs = made
    mine = replace(mine, what={**mine.what, "config": str(data.get("config", ""))})
    over = data.get("over_cudnn")
    if isinstance(over, int | float) and over > 0:
        # The ratio within the rounds is stated; its spread is not.
        theirs = replace(theirs, result={**theirs.result, "ours_over_it": float(over)})
    return [mine, theirs]
