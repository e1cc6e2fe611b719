"""A log of the problems that calls had: written where FLASHSMITH_SHAPES says, read by `warmup`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from flashsmith.base.errors import DamagedFile
from flashsmith.base.json_text import parse_json
from flashsmith.base.loose_types import JsonObject
from flashsmith.base.whole_file import named_in_errors
from flashsmith.kernels.kernel import KernelConfig
from flashsmith.kernels.parse import parse_config
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.text import problem_fields, problem_from_fields

Wanted = tuple[AttentionProblem, KernelConfig | None]  # and the configuration, where one is given


def write_shape(path: Path, problem: AttentionProblem, config: KernelConfig | None) -> None:
    """Appends a problem that a call had, and the configuration it asked for, to a log."""
    line: JsonObject = {"problem": problem_fields(problem)}
    if config is not None:
        line["config"] = config.short_form()
    with named_in_errors(path), path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def read_shapes(path: Path) -> Iterator[Wanted]:
    """What `write_shape` wrote; the same problem may stand there many times."""
    with named_in_errors(path):
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    for number, line in enumerate(lines, start=1):
        try:
            data = parse_json(line)
            if not isinstance(data, dict) or not {"problem"} <= set(data) <= {"problem", "config"}:
                raise ValueError("it has other fields than problem and config")
            config = parse_config(str(data["config"])) if "config" in data else None
            yield problem_from_fields(data["problem"]), config
        except (ValueError, DamagedFile) as error:
            raise DamagedFile(
                f"line {number} of {path} does not belong to a log of shapes: {error}"
            ) from error
