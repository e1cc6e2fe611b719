"""`flashsmith results`: look at measurements, compare, merge, exchange and prune them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from flashsmith.base import settings
from flashsmith.base.errors import ArgumentError
from flashsmith.cli import options
from flashsmith.cli.output import Row, note, show
from flashsmith.cli.verbs.results_compared import compared
from flashsmith.compile.nvrtc.library import find_nvrtc
from flashsmith.kernels import parse_config
from flashsmith.problem.text import problem_text
from flashsmith.tuner.store import exchange
from flashsmith.tuner.store.database import ResultStore, read_store
from flashsmith.tuner.store.measurement import Measurement
from flashsmith.tuner.store.outcome import Timed, outcome_fields, reason_of
from flashsmith.tuner.store.stale import Standing, standings, uncheckable_compilers

_ACTIONS = "list, show, diff, picks, merge, export, import or prune"
# How many files, or for `show` short forms, an action is given.
_SHOW_ROWS = {"list": 0, "show": 1, "diff": 2, "picks": 2}
_TAKES = _SHOW_ROWS | {"merge": 1, "export": 0, "import": 1, "prune": 0}
ActionArgument = Annotated[str, typer.Argument(metavar="ACTION", help=f"{_ACTIONS}.")]
FilesArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="[FILES]", help="What the action works on; see the examples."),
]
OutputOption = Annotated[Path | None, typer.Option("-o", help="Where `export` writes.")]


def command(
    action: ActionArgument,
    files: FilesArgument = None,
    store: options.StoreOption = None,
    output: OutputOption = None,
    every: options.AllOption = False,
    json: options.JsonOption = False,
    csv: options.CsvOption = False,
) -> None:
    """Look at measurements, compare, merge, exchange and prune them.

    Examples: flashsmith results list;
    flashsmith results show "(BF16, 128, 64, 64, 4): async+load_0_0_0_tiles";
    flashsmith results diff before.jsonl after.jsonl  # do ratios agree?;
    flashsmith results picks first.sqlite second.sqlite  # is the same chosen?;
    flashsmith results merge other.sqlite;
    flashsmith results export -o mine.jsonl;
    flashsmith results import colleague.jsonl;
    flashsmith results prune  # forgets what kernels no longer are
    """
    path = store or settings.results_path()
    names = files or []
    if action not in _TAKES:
        raise ArgumentError(f"action is {action!r}; it must be {_ACTIONS}.")
    _require_files(action, names, _TAKES[action])
    if output is not None and action != "export":
        raise ArgumentError(f"-o is given for {action}; only export writes a file; drop it.")
    if action not in _SHOW_ROWS:
        options.refuse_together({action: True, "--json": json})
        options.refuse_together({action: True, "--csv": csv})
    if action in ("diff", "picks"):
        both = compared(action, *(Path(name) for name in names))
        columns = None if json or csv else both.columns
        show(both.rows, json=json, csv=csv, columns=columns, every=every, title=both.title)
        return
    if action in ("merge", "import"):
        # Everything is read and checked before the first row is added.
        found = [replace(m, is_imported=True) for m in exchange.read_any(Path(names[0]))]
        with ResultStore(path) as opened:
            note(f"{opened.add_all(found)} of {len(found)} measurements are new in {path}")
        return
    _require_store(path)
    if action == "export":
        if output is None:
            raise ArgumentError("export was given no file; it writes JSON lines; add -o FILE.")
        found = read_store(path)
        note(f"{exchange.write_lines(found, output)} measurements written to {output}")
        return
    if action == "prune":
        with ResultStore(path) as opened:
            _prune(opened)
        return
    wanted = parse_config(names[0]).short_form() if action == "show" else None
    rows = _list_rows(read_store(path), lambda m: wanted in (None, m.key.config))
    title = f"{len(rows)} measurements in {path}"
    show(rows, json=json, csv=csv, every=every, title=title)
    if wanted and not rows:
        note(f"{path} holds no measurement of {wanted}; `flashsmith results list` shows all.")


def _prune(store: ResultStore) -> None:
    """Forgets what is known to be of other kernels, and says what could not be told."""
    found = standings(store.all())
    stale = [m.key for m, standing in found if standing is Standing.STALE]
    note(f"{store.remove(stale)} measurements of changed kernels forgotten")
    others = uncheckable_compilers(found)
    if others:
        kept = sum(standing is Standing.UNCHECKABLE for _, standing in found)
        note(
            f"{kept} measurements were not checked: {', '.join(others)} compiled their kernels, "
            f"and this machine has {find_nvrtc().compiler}"
        )


def _require_files(action: str, names: list[str], count: int) -> None:
    if len(names) != count:
        thing = "configurations" if action == "show" else "files"
        raise ArgumentError(f"{action} was given {len(names)} {thing}; it takes {count}.")


def _require_store(path: Path) -> None:
    if not path.exists():
        raise ArgumentError(
            f"{path} does not exist; `flashsmith tune` writes it; tune first, or name another with "
            f"--store."
        )


def _list_rows(found: list[Measurement], wanted: Callable[[Measurement], bool]) -> list[Row]:
    return [
        {
            "config": m.key.config,
            "problem": problem_text(m.key.problem),
            "outcome": type(m.outcome).__name__,
            "median_us": m.outcome.median_us if isinstance(m.outcome, Timed) else None,
            "choosable": m.gate,
            "imported": m.is_imported,
            "bits": str(outcome_fields(m.outcome).get("fingerprint", ""))[:8],
            "gpu": m.key.gpu,
            "protocol": m.key.protocol,
            "reason": reason_of(m.outcome),
            "when": m.when,
        }
        for m in found
        if wanted(m)
    ]
