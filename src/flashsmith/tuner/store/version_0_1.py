"""Rows of version 0.1, which were keyed by the text of their headers, read as rows of today.

A side file, made once at commit 715865e, holds the hash of the machine code of every kernel that
was current then, by compiler, architecture and source hash (which covers configuration and needs).
A row whose source hash is not there is of a kernel nobody can tell any more: it is kept, and stale.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from flashsmith.base.errors import FlashsmithError
from flashsmith.base.json_text import parse_json
from flashsmith.base.loose_types import JsonObject
from flashsmith.kernels import parse_config
from flashsmith.kernels.plans import plan, sum_order
from flashsmith.problem.text import problem_fields, problem_from_fields
from flashsmith.tuner.store.measurement import SCHEMA

SIDE_FILE = Path(__file__).parents[2] / "shipped" / "code_of_version_0_1.json"
UNKNOWN = "source "  # begins what stands for the code of a kernel that is not in the side file
_SM_COUNT = 132  # of the GPUs that 0.1 shipped measurements for

Fields = JsonObject


def converted(data: Fields) -> Fields:
    """A line of version 0.1 as one of this version; every check of a line is still to be made."""
    old = dict(data)
    source = str(old.pop("source_hash", ""))
    new = {**old, "schema": SCHEMA, "code": _code_of(source, old)}
    if isinstance(old.get("problem"), dict):
        new["problem"] = problem_fields(problem_from_fields(old["problem"]))
    if "fingerprint" in old and _is_of_two_kinds(new):
        new["fingerprint"] = ""
    return new


def _code_of(source: str, old: Fields) -> str:
    if not source:
        return ""  # never compiled
    of_compiler = code_by_source().get(str(old.get("compiler")), {})
    return str(of_compiler.get(str(old.get("arch")), {}).get(source, f"{UNKNOWN}{source}"))


@cache
def code_by_source() -> dict[str, dict[str, dict[str, str]]]:
    """The side file: by compiler, architecture and source hash."""
    found: dict[str, dict[str, dict[str, str]]] = parse_json(SIDE_FILE.read_bytes())
    return found


def _is_of_two_kinds(new: Fields) -> bool:
    """Whether the fingerprint may leave out that the launch split its tiles.

    What of a launch decides the order of sums became part of a fingerprint after such rows were
    measured: split and whole launches stood under one.
    """
    try:
        problem = problem_from_fields(new["problem"])
        config = parse_config(str(new["config"]))
        environment = new.get("environment")
        sm_count = environment.get("sm_count") if isinstance(environment, dict) else None
        count = sm_count if isinstance(sm_count, int) and 0 < sm_count < 10**4 else _SM_COUNT
        return sum_order(plan(config, problem, sm_count=count)) != ""
    except (FlashsmithError, KeyError):
        return False  # such a row is refused by its own checks
