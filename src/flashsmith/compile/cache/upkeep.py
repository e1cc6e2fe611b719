"""What lies in the kernel cache, how large it is, and what goes when it is too large."""

from __future__ import annotations

import os
import shutil
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from flashsmith.base.json_text import parse_json

PARTS = ("kernels", "failed", "damaged")
KEEP_SHARE = 0.9  # of the limit after an eviction, so that the next entry does not evict again
ABANDONED_AFTER_S = 3600.0  # a folder being written longer than this has lost its writer


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """One folder of the cache."""

    folder: Path
    part: str
    n_bytes: int
    last_used: float  # seconds since the epoch

    def label(self) -> str:
        """What was compiled: the first line of the unit; empty where that cannot be read."""
        try:
            first = (self.folder / "kernel.cu").read_text().partition("\n")[0]
        except (OSError, ValueError):
            return ""
        return first.removeprefix("// ")

    def arch(self) -> str:
        """The architecture it was compiled for; empty where that is not written."""
        try:
            return str(parse_json((self.folder / "artefact.json").read_bytes())["arch"])
        except (OSError, ValueError, KeyError, TypeError):
            return ""


def entries(root: Path) -> list[CacheEntry]:
    """Every folder of the cache, the least recently used first."""
    found = []
    for part in PARTS:
        place = root / part
        folders = list(place.iterdir()) if place.is_dir() else []
        for folder in folders:
            try:
                n_bytes = sum(file.stat().st_size for file in folder.iterdir())
                last_used = folder.stat().st_mtime
            except (FileNotFoundError, NotADirectoryError):
                continue  # another process evicted it, or it is no entry
            if folder.name.startswith(".") and last_used > time.time() - ABANDONED_AFTER_S:
                continue  # being written
            found.append(CacheEntry(folder, part, n_bytes, last_used))
    return sorted(found, key=lambda entry: entry.last_used)


def evict(root: Path, limit_bytes: int) -> int:
    """Removes the least recently used entries until the rest fits; returns its size."""
    present = entries(root)
    n_bytes = sum(entry.n_bytes for entry in present)
    if n_bytes <= limit_bytes:
        return n_bytes
    for entry in present:
        if n_bytes <= limit_bytes * KEEP_SHARE:
            break
        remove(entry)
        n_bytes -= entry.n_bytes
    return n_bytes


def clean(root: Path) -> tuple[int, int]:
    """Removes every entry; returns how many there were and their bytes."""
    present = entries(root)
    for entry in present:
        remove(entry)
    return len(present), sum(entry.n_bytes for entry in present)


def remove(entry: CacheEntry) -> None:
    """Removes one entry; a reader sees it whole or not at all."""
    gone = entry.folder.with_name(f".{entry.folder.name}-gone-{os.getpid()}")
    with suppress(FileNotFoundError):  # another process was first
        entry.folder.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)
