"""`flashsmith cache`: what the kernel cache holds, and cleaning it."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from flashsmith.base import settings
from flashsmith.cli import options
from flashsmith.cli.output import note, say, show
from flashsmith.compile.cache import upkeep as cache_upkeep
from flashsmith.compile.cache.upkeep import CacheEntry

COLUMNS = ("part", "key", "kernel", "arch", "bytes", "days_since_use")
KEY_DIGITS = 12  # enough to find the folder by
CleanOption = Annotated[bool, typer.Option("--clean", help="Remove every entry.")]
ListOption = Annotated[bool, typer.Option("--list", help="One row per entry, last used first.")]


def command(
    clean: CleanOption = False,
    entries: ListOption = False,
    every: options.AllOption = False,
    json: options.JsonOption = False,
    csv: options.CsvOption = False,
) -> None:
    """Look at the kernel cache, or clean it.

    Example: flashsmith cache --list --csv
    """
    options.refuse_together({"--clean": clean, "--list": entries})
    root = settings.cache_dir()
    if clean:
        options.refuse_together({"--clean": clean, "--json": json, "--csv": csv})
        cleaned = cache_upkeep.clean(root)
        say(f"removed {cleaned.count} entries, {cleaned.n_bytes / 1e6:.1f} MB, from {root}")
        for reason in cleaned.left:
            note(f"cannot be removed: {reason}")
        raise typer.Exit(1 if cleaned.left else 0)
    present = cache_upkeep.entries(root)
    if entries:
        rows = [_row(entry) for entry in reversed(present)]
        title = f"{len(rows)} entries in {root}"
        if json or csv:
            show(rows, json=json, csv=csv, columns=COLUMNS)
        else:
            show([_divided(row) for row in rows], every=every, title=title)
        return
    show([_summary(present)], json=json, csv=csv)


def _summary(present: list[CacheEntry]) -> dict[str, object]:
    counts = {part: sum(entry.part == part for entry in present) for part in cache_upkeep.PARTS}
    return {
        "folder": str(settings.cache_dir()),
        **counts,
        "megabytes": round(sum(entry.n_bytes for entry in present) / 1e6, 1),
        "limit_megabytes": round(settings.cache_limit_bytes() / 1e6, 1),
    }


def _divided(row: dict[str, object]) -> dict[str, object]:
    """The row with its kernel in two columns: the configuration, and what it is compiled for."""
    config, _, traits = str(row["kernel"]).partition(" | ")
    shown = {name: row[name] for name in COLUMNS if name != "kernel"}
    return {"config": config, "for": traits, **shown}


def _row(entry: CacheEntry) -> dict[str, object]:
    return {
        "part": entry.part,
        "key": entry.folder.name[:KEY_DIGITS],
        "kernel": entry.label(),
        "arch": entry.arch() or None,
        "bytes": entry.n_bytes,
        "days_since_use": round((time.time() - entry.last_used) / 86400, 2),
    }
