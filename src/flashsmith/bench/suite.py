"""Suites: lists of problems in TOML files, shipped ones by name and others by path."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path

from flashsmith.base.dtypes import DType
from flashsmith.base.errors import ArgumentError
from flashsmith.base.loose_types import Json
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.signature import FORWARD

FOLDER = Path(__file__).parent / "suites"
_GRID = {"d_heads", "seq_lens", "masks", "tokens", "width"}
_SHAPE = {"name", "batch", "heads", "kv_heads", "length", "d_head", "mask"}
# Facts that a shape may have beside these, by their names in a problem.
_SHAPE_FACTS = {"window_left", "window_right", "softcap", "scale", "sinks", "alibi", "sequences"}
_CACHES = {"sizes", "groups", "pages", "kv_heads", "d_head", "q_len"}
_MASKS = {"full": False, "causal": True}


@dataclass(frozen=True, slots=True)
class Shape:
    """One problem of a suite, and what people call it."""

    name: str
    problem: AttentionProblem


@dataclass(frozen=True, slots=True)
class Suite:
    """A name, a sentence, and shapes."""

    name: str
    about: str
    shapes: tuple[Shape, ...]


def suite_names() -> list[str]:
    """The suites that come with the package."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def read_suite(name: str, dtype: DType) -> Suite:
    """A shipped suite by name, or the TOML file at a path."""
    path = Path(name) if name.endswith(".toml") else FOLDER / f"{name}.toml"
    if name.endswith(".toml") and not path.is_file():
        raise ArgumentError(
            f"--suite is {name!r}; {path} does not exist; give a path to a .toml file, or one of "
            f"{', '.join(suite_names())}."
        )
    if not path.is_file():
        near = get_close_matches(name, suite_names(), 1)
        hint = f"did you mean {near[0]}?" if near else "choose one."
        raise ArgumentError(
            f"--suite is {name!r}; it must be {', '.join(suite_names())} or a path to a .toml "
            f"file; {hint}"
        )
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except RecursionError as error:
        raise ArgumentError(f"{path} is not a suite: it is nested too deeply.") from error
    except (OSError, ValueError) as error:  # ValueError: TOML's, UTF-8's, or too many digits
        raise ArgumentError(f"{path} is not a TOML file: {error}.") from error
    try:
        shapes = [shape for table in data.get("grid", []) for shape in _grid(path, table, dtype)]
        shapes += [_shape(path, table, dtype) for table in data.get("shape", [])]
        shapes += [s for table in data.get("caches", []) for s in _caches(path, table, dtype)]
    except ArgumentError as error:
        raise ArgumentError(error if str(path) in str(error) else f"{path}: {error}") from error
    except (AttributeError, OverflowError, TypeError, ValueError, ZeroDivisionError) as error:
        raise ArgumentError(
            f"{path} has a field of the wrong type, or a length or width of 0 ({error}); the "
            f"shipped suites in {FOLDER} show how one is written."
        ) from error
    if not shapes:
        raise ArgumentError(
            f"{path} holds no shapes; add a [[grid]], [[shape]] or [[caches]] table."
        )
    return Suite(path.stem, str(data.get("about", "")), tuple(shapes))


def of_lengths(suite: Suite, lengths: Sequence[int]) -> Suite:
    """The suite with its shapes of these lengths alone."""
    return _held_to(suite, "--seq-lens", "k_len", lengths)


def of_widths(suite: Suite, d_heads: Sequence[int]) -> Suite:
    """The suite with its shapes of these head dimensions alone."""
    return _held_to(suite, "--d-heads", "d_head", d_heads)


def _held_to(suite: Suite, option: str, field: str, wanted: Sequence[int]) -> Suite:
    there = {getattr(shape.problem, field) for shape in suite.shapes}
    missing = sorted(set(wanted) - there)
    if missing:
        raise ArgumentError(
            f"{option} names {', '.join(map(str, missing))}; those of {suite.name} are "
            f"{', '.join(map(str, sorted(there)))}."
        )
    kept = tuple(s for s in suite.shapes if getattr(s.problem, field) in wanted)
    return replace(suite, shapes=kept)


def of_operations(suite: Suite, operations: Sequence[str], *, deterministic: bool = True) -> Suite:
    """The suite with its shapes as problems of these operations; a forward pass keeps its name.

    Gradients of q, k and v are those without sinks: the log-sum-exp holds what they depend on.
    """
    shapes: list[Shape] = []
    for operation in operations:
        if operation == FORWARD.operation:
            shapes += suite.shapes
            continue
        for shape in suite.shapes:
            if shape.problem.k_lengths:
                raise ArgumentError(
                    f"--op is {operation!r} and {suite.name} has caches ({shape.name}), which have "
                    f"no gradients; choose another --suite."
                )
            problem = replace(
                shape.problem, operation=operation, sinks=False, deterministic=deterministic
            )
            shapes.append(Shape(f"{shape.name} {operation}", problem))
    return replace(suite, shapes=tuple(shapes))


def _grid(path: Path, table: Mapping[str, Json], dtype: DType) -> list[Shape]:
    _require_fields(path, "grid", table, _GRID)
    shapes = []
    for d_head in table["d_heads"]:
        for mask in table["masks"]:
            for length in table["seq_lens"]:
                heads = max(table["width"] // d_head, 1)
                batch = max(table["tokens"] // length, 1)
                problem = _problem(path, batch, heads, heads, length, d_head, mask, dtype)
                shapes.append(Shape(f"d{d_head} {mask} {length}", problem))
    return shapes


def _shape(path: Path, table: Mapping[str, Json], dtype: DType) -> Shape:
    _require_fields(path, "shape", table, _SHAPE, _SHAPE_FACTS)
    t = table
    problem = _problem(
        path, t["batch"], t["heads"], t["kv_heads"], t["length"], t["d_head"], t["mask"], dtype
    )
    return Shape(str(t["name"]), replace(problem, **{n: t[n] for n in _SHAPE_FACTS & set(t)}))


def _caches(path: Path, table: Mapping[str, Json], dtype: DType) -> list[Shape]:
    """Query rows on caches with lengths in memory: every size with every group and page."""
    _require_fields(path, "caches", table, _CACHES)
    kv_heads, q_len = table["kv_heads"], table["q_len"]
    shapes = []
    for batch, keys in table["sizes"]:
        for group in table["groups"]:
            problem = AttentionProblem(
                *(batch, group * kv_heads, kv_heads, q_len, keys, table["d_head"], dtype),
                causal=q_len > 1,
                k_lengths=True,
            )
            size = f"b{batch} k{keys} q{q_len} {group * kv_heads}:{kv_heads}"
            for page in table["pages"]:
                pages = batch * -(-keys // page) if page else 0
                kept = f"page {page}" if page else "contiguous"
                shapes.append(Shape(f"{size} {kept}", replace(problem, page=page, pages=pages)))
    return shapes


def _problem(
    path: Path,
    batch: int,
    heads: int,
    kv_heads: int,
    length: int,
    d_head: int,
    mask: str,
    dtype: DType,
) -> AttentionProblem:
    if mask not in _MASKS:
        raise ArgumentError(f"{path}: mask is {mask!r}; it must be full or causal.")
    return AttentionProblem(
        batch, heads, kv_heads, length, length, d_head, dtype, causal=_MASKS[mask]
    )


def _require_fields(
    path: Path,
    kind: str,
    table: Mapping[str, object],
    known: set[str],
    optional: frozenset[str] | set[str] = frozenset(),
) -> None:
    # A misspelt field would otherwise be a default that nobody asked for.
    odd = sorted((set(table) - optional) ^ known)
    if odd:
        more = f", and if wanted {', '.join(sorted(optional))}" if optional else ""
        raise ArgumentError(
            f"{path}: fields of [[{kind}]] are missing or unknown: {', '.join(odd)}; known are "
            f"{', '.join(sorted(known))}{more}."
        )
