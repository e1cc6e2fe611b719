"""A problem as flat data and back: what has its absent value is not written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from flashsmith.base.dtypes import DType
from flashsmith.base.errors import DamagedFile
from flashsmith.problem.attention import AttentionProblem

_ABSENT: Mapping[str, object] = {"causal": False, "diagonal": None, "scale": None, "layout": "bshd"}
PROBLEM_NAMES = tuple(f.name for f in fields(AttentionProblem))
_NEEDED = frozenset(PROBLEM_NAMES) - frozenset(_ABSENT)
MOST = 2**31 - 1  # of every size: kernels count in 32 bits
_SIZES = ("batch", "heads", "kv_heads", "q_len", "k_len", "d_head")


def problem_fields(problem: AttentionProblem) -> dict[str, Any]:  # Any: JSON
    """A problem as flat data, the element type by name.

    A field that a later version adds has an absent value: texts of older versions stay the same.
    """
    found = {name: getattr(problem, name) for name in PROBLEM_NAMES}
    return {**without_absent(found), "dtype": problem.dtype.name}


def without_absent(data: Mapping[str, Any]) -> dict[str, Any]:  # Any: JSON
    """Flat data less the fields of a problem that have their absent value."""
    return {n: v for n, v in data.items() if n not in _ABSENT or v != _ABSENT[n]}


def problem_from_fields(data: object) -> AttentionProblem:
    """The problem that `problem_fields` wrote, checked; one that can be measured is not empty."""
    if not isinstance(data, dict) or not _NEEDED <= set(data) <= set(PROBLEM_NAMES):
        raise DamagedFile(
            f"problem is {str(data)[:200]!r}; its fields are {', '.join(sorted(_NEEDED))} and "
            f"perhaps {', '.join(_ABSENT)}."
        )
    dtype = DType.__members__.get(str(data["dtype"]))
    if dtype is None:
        raise DamagedFile(f"dtype is {str(data['dtype'])[:40]!r}; it is FP16 or BF16.")
    for name in _SIZES:
        value = data[name]
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST:
            raise DamagedFile(
                f"{name} of the problem is {str(value)[:40]}; it is a number from 1 to {MOST:,}."
            )
    for name, kinds in (
        ("causal", (bool,)),
        ("diagonal", (int, type(None))),
        ("scale", (int, float, type(None))),
    ):
        if not isinstance(data.get(name, _ABSENT[name]), kinds):
            raise DamagedFile(f"{name} of the problem is {str(data[name])[:40]!r}.")
    if abs(data.get("diagonal") or 0) > MOST:
        raise DamagedFile("diagonal of the problem is beyond every length.")
    return AttentionProblem(**{**data, "dtype": dtype})
