"""What a call brings beside q, k and v: a window as two facts, and tables such as sinks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from flashsmith.api.array_view import ArrayView, compact
from flashsmith.api.arrays.library import Array
from flashsmith.base.errors import ArgumentError, ArgumentTypeError
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.signature import TABLES, TensorRole

ArrayTables = Mapping[str, Array]  # of a call, by the names of `TABLES`
TableViews = Mapping[str, ArrayView]
NO_TABLES: ArrayTables = {}
BOUNDARIES = ("cu_seqlens_q", "cu_seqlens_k")  # of packed sequences
_UNBOUNDED = -1


def take_tables(facts: dict[str, object]) -> ArrayTables:
    """The tables among the keyword arguments of a call, which are taken out of them."""
    found = {name: facts.pop(name) for name in TABLES if name in facts}
    return {name: array for name, array in found.items() if array is not None}


def take_window(facts: dict[str, object]) -> None:
    """Puts two facts in the place of `window`."""
    window = facts.pop("window", None)
    if window is not None:
        facts["window_left"], facts["window_right"] = window_sides("window", window)


def window_sides(name: str, window: object) -> tuple[object, object]:
    """The keys left and right of a row's own position; None where a side is not bounded."""
    if not isinstance(window, tuple | list) or len(window) != 2:
        raise ArgumentTypeError(
            f"{name} is {window!r}; it must be a pair, keys to the left and keys to the right; -1 "
            f"or None for all."
        )
    left, right = (None if side == _UNBOUNDED else side for side in window)
    return left, right


def with_tables(problem: AttentionProblem, tables: TableViews) -> AttentionProblem:
    """The problem that a call with these tables poses; each is held to its role."""
    if not tables:
        return problem
    asked = {TABLES[name].asked_by: _asked(name, view) for name, view in tables.items()}
    _require_both_boundaries(tables)
    problem = replace(problem, **asked)  # type: ignore[arg-type]  # facts of tables
    for name, view in tables.items():
        _require_fits(TABLES[name], view, problem)
    return problem


def _asked(name: str, view: ArrayView) -> bool | int:
    """The value of the fact that a table stands for: packed sequences are counted."""
    if name not in BOUNDARIES:
        return True
    if len(view.shape) != 1 or view.shape[0] < 2:
        raise ArgumentError(
            f"{name} has shape {view.shape}; it must be (sequences + 1,): where each sequence "
            f"begins, and where the last one ends."
        )
    return view.shape[0] - 1


def _require_both_boundaries(tables: TableViews) -> None:
    given = [name for name in BOUNDARIES if name in tables]
    if len(given) == 1:
        missing = next(name for name in BOUNDARIES if name not in tables)
        raise ArgumentError(
            f"{given[0]} is given without {missing}; packed sequences need both; pass the same "
            f"for self-attention."
        )
    counts = [tables[name].shape[0] for name in given]
    if len(set(counts)) > 1:
        raise ArgumentError(
            f"cu_seqlens_q has {counts[0]} entries and cu_seqlens_k has {counts[1]}; they must be "
            f"equal: one more than there are sequences."
        )


def _require_fits(role: TensorRole, view: ArrayView, problem: AttentionProblem) -> None:
    shape, kind = role.shape(problem), "int32" if role.is_integer else "float32"
    if view.dtype != kind:
        raise ArgumentTypeError(f"{role.name} is {view.dtype}; it must be {kind}.")
    if view.shape != shape:
        raise ArgumentError(
            f"{role.name} has shape {view.shape}; it must be {shape}: ({', '.join(role.of)})."
        )
    if view.strides != compact(shape) and not view.is_empty and max(shape) > 1:
        raise ArgumentError(f"{role.name} is not contiguous; pass a contiguous copy.")


def in_order(tables: ArrayTables) -> list[Array]:
    """One entry for each of `TABLES`; None where a call brings none."""
    return [tables.get(name) for name in TABLES]


def by_name(arrays: list[Array]) -> ArrayTables:
    """The reverse of `in_order`."""
    named = zip(TABLES, arrays, strict=True)
    return {name: array for name, array in named if array is not None}
