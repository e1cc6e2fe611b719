"""What lies in the kernel cache, how large it is, and what goes when it is too large."""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from flashsmith.base.json_text import parse_json
from flashsmith.base.whole_file import scratch_beside

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
        for folder in _folders_of(root / part):
            try:
                last_used = folder.stat().st_mtime
                n_bytes = _bytes_of(folder)
            except (FileNotFoundError, NotADirectoryError):
                continue  # another process evicted it, or it is no entry
            except OSError:
                n_bytes = 0  # it cannot be read
            if folder.name.startswith(".") and last_used > time.time() - ABANDONED_AFTER_S:
                continue  # being written
            found.append(CacheEntry(Path(folder.path), part, n_bytes, last_used))
    return sorted(found, key=lambda entry: entry.last_used)


# By os.scandir: the first kernel that a process compiles waits for this, and a cache may hold
# thousands of entries.
def _folders_of(parent: Path) -> list[os.DirEntry[str]]:
    if not parent.is_dir():
        return []
    with os.scandir(parent) as found:
        return list(found)


def _bytes_of(folder: os.DirEntry[str]) -> int:
    with os.scandir(folder.path) as files:
        return sum(file.stat().st_size for file in files)


def evict(root: Path, limit_bytes: int) -> int:
    """Removes the least recently used entries until the rest fits; returns its size."""
    present = entries(root)
    n_bytes = sum(entry.n_bytes for entry in present)
    if n_bytes <= limit_bytes:
        return n_bytes
    for entry in present:
        if n_bytes <= limit_bytes * KEEP_SHARE:
            break
        if not remove(entry):
            n_bytes -= entry.n_bytes
    return n_bytes


def swept_bytes(root: Path) -> int:
    """How much lies there, without what processes that ended while they wrote or removed left."""
    n_bytes = 0
    for entry in entries(root):
        if not entry.folder.name.startswith(".") or remove(entry):
            n_bytes += entry.n_bytes
    return n_bytes


@dataclass(frozen=True, slots=True)
class Cleaned:
    """What a cleaning removed, and what it could not, with the reason."""

    count: int
    n_bytes: int
    left: tuple[str, ...] = ()


def clean(root: Path) -> Cleaned:
    """Removes every entry that can be removed."""
    reasons = [(entry, remove(entry)) for entry in entries(root)]
    gone = [entry for entry, reason in reasons if not reason]
    left = tuple(f"{entry.folder}: {reason}" for entry, reason in reasons if reason)
    return Cleaned(len(gone), sum(entry.n_bytes for entry in gone), left)


def remove(entry: CacheEntry) -> str:
    """Removes one entry, which a reader sees whole or not at all; why it is still there, or ""."""
    gone = scratch_beside(entry.folder)
    try:
        entry.folder.rename(gone)
        shutil.rmtree(gone)
    except FileNotFoundError:
        return ""  # another process was first
    except OSError as error:
        return error.strerror or str(error)
    return ""
