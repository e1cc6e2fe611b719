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

FOLDER = Path(__file__).parent / "suites"
_GRID = {"d_heads", "seq_lens", "masks", "tokens", "width"}
_SHAPE = {"name", "batch", "heads", "kv_heads", "length", "d_head", "mask"}
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
    except ArgumentError as error:
        raise ArgumentError(error if str(path) in str(error) else f"{path}: {error}") from error
    except (AttributeError, OverflowError, TypeError, ZeroDivisionError) as error:
        raise ArgumentError(
            f"{path} has a field of the wrong type, or a length or width of 0 ({error}); the "
            f"shipped suites in {FOLDER} show how one is written."
        ) from error
    if not shapes:
        raise ArgumentError(f"{path} holds no shapes; add a [[grid]] or [[shape]] table.")
    return Suite(path.stem, str(data.get("about", "")), tuple(shapes))


def of_lengths(suite: Suite, lengths: Sequence[int]) -> Suite:
    """The suite with its shapes of these lengths alone."""
    shapes = tuple(shape for shape in suite.shapes if shape.problem.q_len in lengths)
    missing = sorted(set(lengths) - {shape.problem.q_len for shape in shapes})
    if missing:
        known = sorted({shape.problem.q_len for shape in suite.shapes})
        raise ArgumentError(
            f"--seq-lens names {', '.join(map(str, missing))}; the lengths of {suite.name} are "
            f"{', '.join(map(str, known))}."
        )
    return replace(suite, shapes=shapes)


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
    _require_fields(path, "shape", table, _SHAPE)
    t = table
    problem = _problem(
        path, t["batch"], t["heads"], t["kv_heads"], t["length"], t["d_head"], t["mask"], dtype
    )
    return Shape(str(t["name"]), problem)


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


def _require_fields(path: Path, kind: str, table: Mapping[str, object], known: set[str]) -> None:
    # A misspelt field would otherwise be a default that nobody asked for.
    if set(table) != known:
        odd = sorted(set(table) ^ known)
        raise ArgumentError(
            f"{path}: fields of [[{kind}]] are missing or unknown: {', '.join(odd)}; known are "
            f"{', '.join(sorted(known))}."
        )
