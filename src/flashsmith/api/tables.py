"""What a call brings beside q, k and v: a window as two facts, and tables such as sinks.

Packed sequences are a table too: where each begins, of arrays of three dimensions or of a batch of
one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flashsmith.api.array_view import ArrayView, compact
from flashsmith.api.arrays.library import Array, ArrayOrTuple
from flashsmith.api.bias import keys_of, kind_of, require_whole, shared_by
from flashsmith.api.options import CALL_FACTS, CallOptions
from flashsmith.base.errors import ArgumentError, ArgumentTypeError
from flashsmith.problem.attention import FACTS, AttentionProblem
from flashsmith.problem.signature import BIAS, TABLES, TensorRole

ArrayTables = Mapping[str, Array]  # of a call, by the names of `TABLES`
TableViews = Mapping[str, ArrayView]
NO_TABLES: ArrayTables = {}
# Tables of calls that have a backward pass.
KEPT_TABLES = ("sinks", "alibi_slopes", "cu_seqlens_q", "cu_seqlens_k", BIAS)
# Facts of callers that no backward kernel knows. Sinks it need not know: the log-sum-exp has all of
# them that the gradients of q, k and v depend on.
_WITHOUT_GRADIENT = [n for n in CALL_FACTS.values() if FACTS[n].exact and n != "softcap"]
_FIRST = ("k_lengths", "block_table")  # of servers, whose small calls wait for the host
TABLE_ORDER = (*_FIRST, *(name for name in TABLES if name not in _FIRST))  # of the operators
_PLACES = {name: place for place, name in enumerate(TABLE_ORDER)}
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
    left, right = window
    return None if left == _UNBOUNDED else left, None if right == _UNBOUNDED else right


def with_tables(
    problem: AttentionProblem, tables: TableViews, pool: tuple[int, int] = (0, 0)
) -> AttentionProblem:
    """The problem that a call with these tables poses; each is held to its role.

    `pool` says how many pages of how many rows a table of pages tells the places of.
    """
    if not tables:
        return problem
    asked: dict[str, object] = {
        TABLES[name].asked_by: _asked(name, view, problem) for name, view in tables.items()
    }
    _require_both_boundaries(tables)
    if "block_table" in tables:
        asked |= {"pages": pool[0], "page": pool[1]}
    if BIAS in tables:
        asked["bias_keys"] = keys_of(tables[BIAS], problem)
        asked["bias_shared"] = shared_by(tables[BIAS])
    problem = replace(problem, **asked)  # type: ignore[arg-type]  # the types of these facts
    for name, view in tables.items():
        _require_fits(TABLES[name], view, problem)
    return problem


def _asked(name: str, view: ArrayView, problem: AttentionProblem) -> bool | int | str:
    """The value of the fact that a table stands for: packed sequences are counted."""
    if name == BIAS:
        return kind_of(view, problem)
    return _sequences_of(view) if name in BOUNDARIES else True


def _sequences_of(boundaries: ArrayView) -> int:
    shape = boundaries.shape
    if len(shape) != 1 or shape[0] < 2:
        raise ArgumentError(
            f"{boundaries.name} has shape {shape}; it must be (sequences + 1,): where each "
            f"sequence begins, and where the last one ends."
        )
    return shape[0] - 1


def _require_both_boundaries(tables: TableViews) -> None:
    given = [name for name in BOUNDARIES if name in tables]
    if given and "block_table" in tables:
        _require_pages_of_packed_rows(tables)
        return
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


def _require_pages_of_packed_rows(tables: TableViews) -> None:
    missing = [n for n in ("cu_seqlens_q", "k_lengths", "block_table") if n not in tables]
    if missing:
        raise ArgumentError(
            f"{missing[0]} is missing; packed rows on pages of keys need cu_seqlens_q, k_lengths "
            f"and block_table."
        )
    if "cu_seqlens_k" in tables:
        raise ArgumentError(
            "cu_seqlens_k and block_table are both given; keys in pages are not packed; pass how "
            "many each sequence has as k_lengths."
        )


def sequences_in(tables: TableViews, batch: int) -> int:
    """Sequences of a call: those whose rows are packed, or the batch."""
    boundaries = tables.get("cu_seqlens_q")
    return batch if boundaries is None else _sequences_of(boundaries)


def rows_of_tables(tables: ArrayTables, batch: int) -> int:
    """The same of tables as a caller gives them, whose shapes are not checked yet."""
    boundaries: Array = tables.get("cu_seqlens_q")
    shape: tuple[int, ...] = getattr(boundaries, "shape", ())
    return shape[0] - 1 if len(shape) == 1 and shape[0] > 1 else batch


def pages_of_a_sequence(table: ArrayView, batch: int) -> int:
    """Pages of a sequence in a table of pages."""
    if len(table.shape) != 2 or table.shape[0] != batch:
        raise ArgumentError(
            f"block_table has shape {table.shape}; it must be ({batch}, pages of a sequence)."
        )
    return table.shape[1]


def _require_fits(role: TensorRole, view: ArrayView, problem: AttentionProblem) -> None:
    if role.is_scores:
        require_whole(view, problem)
        return
    shape, kind = role.shape(problem), "int32" if role.is_integer else "float32"
    if view.dtype != kind:
        raise ArgumentTypeError(f"{role.name} is {view.dtype}; it must be {kind}.")
    if view.shape != shape:
        words = {"requests": "sequences" if problem.sequences else "batch"}
        means = ", ".join(words.get(name, name) for name in role.of)
        raise ArgumentError(f"{role.name} has shape {view.shape}; it must be {shape}: ({means}).")
    # The stride of a dimension with one element has no meaning.
    gaps = [n > 1 and s != c for n, s, c in zip(shape, view.strides, compact(shape), strict=True)]
    if any(gaps) and not view.is_empty:
        raise ArgumentError(f"{role.name} is not contiguous; pass a contiguous copy.")


def require_entries_inside(tables: ArrayTables, q: Array, k: Array, layout: str) -> None:
    """Raises for lengths and pages that kernels would clamp; the tables are awaited."""
    axis = -3 if layout == "bshd" else -2
    rows, pages = k.shape[axis], _on_host(tables, "block_table", 2)
    k_len = rows if pages is None else rows * pages.shape[1]
    lengths = _on_host(tables, "k_lengths")
    of_q, of_k = (_on_host(tables, name) for name in BOUNDARIES)
    counts = {len(x) + 1 for x in (pages, lengths) if x is not None}
    counts |= {len(x) for x in (of_q, of_k) if x is not None}
    if len(counts) > 1:
        return  # tables that do not fit each other are refused by name
    for name, own, whole in (
        ("q_lengths", of_q, q.shape[axis]),
        ("k_lengths", of_k, k_len),
        ("k_starts", of_k, k_len),
    ):
        found = _on_host(tables, name)
        if found is None or not counts <= {len(found) + 1}:
            continue
        for sequence, length in enumerate(found):
            most = whole if own is None else own[sequence + 1] - own[sequence]
            if name == "k_starts" and lengths is not None:
                most = min(most, lengths[sequence])
            if not 0 <= length <= most:
                raise ArgumentError(
                    f"{name}[{sequence}] is {length}; sequence {sequence} has room for 0 to {most} "
                    f"{'rows' if name == 'q_lengths' else 'keys'}; correct the length."
                )
    for sequence, table in enumerate([] if pages is None else pages):
        used = len(table) if lengths is None else -(-int(lengths[sequence]) // max(rows, 1))
        for entry, page in enumerate(table[:used]):
            if not 0 <= page < k.shape[0]:
                raise ArgumentError(
                    f"block_table[{sequence}, {entry}] is {page}; the pool has pages 0 to "
                    f"{k.shape[0] - 1}; correct the entry of sequence {sequence}."
                )


def without_gradient(options: CallOptions, tables: Iterable[str]) -> str:
    """The first fact or table of a call that has no backward pass, or an empty text."""
    given = [name for name in _WITHOUT_GRADIENT if options.fact(name) != FACTS[name].absent]
    return next(iter([*given, *(name for name in tables if name not in KEPT_TABLES)]), "")


def words_of(name: str, table: Array, rows: int) -> NDArray[Any]:
    """A table of the host in the type of its role; slopes of heads are those of all sequences."""
    numbers = np.asarray(table)
    if numbers.dtype.kind not in ("iu" if TABLES[name].is_integer else "f"):
        raise ArgumentTypeError(
            f"{name} is {numbers.dtype}; it must be "
            f"{'int32' if TABLES[name].is_integer else 'float32'}."
        )
    if name == "alibi_slopes" and numbers.ndim == 1:
        numbers = np.broadcast_to(numbers, (rows, *numbers.shape))
    if TABLES[name].is_integer:  # clamped, as kernels do with what lies outside a sequence
        least, most = np.iinfo(np.int32).min, np.iinfo(np.int32).max
        return np.ascontiguousarray(np.clip(numbers, least, most), np.int32)
    return np.ascontiguousarray(numbers, np.float32)


def view_of_words(name: str, words: NDArray[Any]) -> ArrayView:
    """The shape of what lies in the host's memory, at address 0: it is copied up."""
    strides = tuple(stride // words.itemsize for stride in words.strides)
    return ArrayView(name, words.shape, strides, str(words.dtype), 0, "cpu")


def table_view(name: str, table: Array, rows: int) -> ArrayView:
    """The same of a table as a caller gives it."""
    words = np.asarray(table) if name == BIAS else words_of(name, table, rows)
    return view_of_words(name, words)


def _on_host(tables: ArrayTables, name: str, dimensions: int = 1) -> NDArray[Any] | None:
    """The integers of a table; None where there are none, or the call is refused by its shape."""
    if name not in tables:
        return None
    table = tables[name]
    found = np.asarray(table.cpu() if hasattr(table, "cpu") else table)
    return found if found.dtype.kind in "iu" and found.ndim == dimensions else None


def in_order(tables: ArrayTables) -> list[Array]:
    """One entry for each of `TABLE_ORDER`; None where a call brings none."""
    return [tables.get(name) for name in TABLE_ORDER]


def listed(tables: ArrayTables) -> list[Array]:
    """The same without a None at the end: an operator's call takes longer for each entry."""
    found: list[Array] = []
    for name, array in tables.items():
        place = _PLACES[name]
        while len(found) <= place:
            found.append(None)
        found[place] = array
    return found


def by_name(arrays: Sequence[Array]) -> ArrayTables:
    """The reverse of both."""
    named = zip(TABLE_ORDER[: len(arrays)], arrays, strict=True)
    return {name: array for name, array in named if array is not None}


def is_packed(tables: ArrayTables) -> bool:
    """Whether a call is of packed sequences."""
    return "cu_seqlens_q" in tables or "cu_seqlens_k" in tables  # `BOUNDARIES`


def without_batch(found: ArrayOrTuple, *, has_lse: bool) -> ArrayOrTuple:
    """The results of a batch of one, of arrays that had no such dimension: (rows, heads, d_head).

    The log-sum-exp is (heads, rows) then.
    """
    if not isinstance(found, tuple):
        return found[0]
    results = [found[0][0], *found[1:]]
    if has_lse:
        results[1] = results[1][0]
    return tuple(results)


def require_boundaries(tables: ArrayTables, q: Array, k: Array, options: CallOptions) -> None:
    """Raises, with the index, where a boundary lies outside its array or before another.

    The tables are awaited and read: only calls that FLASHSMITH_CHECK asks to hold pass here.
    Without it kernels clamp boundaries into the array.
    """
    for name, array in zip(BOUNDARIES, (q, k), strict=True):
        found = _on_host(tables, name)
        if found is None:
            continue
        rows = array.shape[-2 if options.fact("layout") == "bhsd" else -3]
        numbers = [int(number) for number in found]
        for index, number in enumerate(numbers):
            if not 0 <= number <= rows:
                raise ArgumentError(
                    f"{name}[{index}] is {number} and {name[-1]} has {rows} rows; boundaries must "
                    f"be from 0 to {rows}."
                )
        for index, (before, number) in enumerate(pairwise(numbers), start=1):
            if number < before:
                raise ArgumentError(
                    f"{name}[{index}] is {number} and {name}[{index - 1}] is {before}; boundaries "
                    f"must not decrease."
                )
