"""Compiled kernels on disk: one private folder a kernel, written whole, read back or rebuilt."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TypedDict, TypeVar

from flashsmith.base import settings
from flashsmith.base.errors import ArgumentError, DamagedFile, Unsupported
from flashsmith.base.json_text import parse_json
from flashsmith.base.loose_types import JsonObject
from flashsmith.base.whole_file import scratch_folder
from flashsmith.compile.artefact import CompiledKernel, PtxKernel, resources_from, text_from

try:
    import fcntl
except ImportError as error:
    raise Unsupported(
        "this system has no POSIX file locks, which the kernel cache needs; use "
        "Linux or macOS (on Windows: WSL)."
    ) from error

SCHEMA = 2  # of an entry's files and of what its key is made of
PRIVATE = 0o700
FACTS, FACTS_HASH = "artefact.json", "artefact.sha256"
RECOUNT_EVERY = 64  # entries written by this process before other processes' are counted too

_log = logging.getLogger("flashsmith.cache")
_Kernel = TypeVar("_Kernel", bound=PtxKernel)


class _PtxFields(TypedDict):
    name: str
    arch: str
    ptx: str
    compiler: str
    source_hash: str
    key: str
    compile_seconds: float
    folder: Path


class KernelCache:
    """The kernels below one folder; safe for many threads and processes at once.

    kernels/KEY/   kernel.cu, kernel.ptx, kernel.cubin, kernel.log, artefact.json, artefact.sha256;
                   no kernel.cubin where PTX alone was asked for
    failed/KEY/    kernel.cu, kernel.log of a unit that did not compile
    damaged/KEY-…  entries that were moved aside
    locks/KEY      held while KEY is being compiled
    """

    def __init__(self, root: Path, limit_bytes: int) -> None:
        self.root = root
        self.limit_bytes = limit_bytes
        self._is_own = False
        self._counted_bytes: int | None = None
        self._since_count = 0

    def get(self, key: str) -> CompiledKernel | None:
        """The kernel of `key`, or None; a damaged entry is moved aside, said, and None."""
        return self._found(key, _read_entry)

    def get_ptx(self, key: str) -> PtxKernel | None:
        """As `get`, of a key under which PTX alone is kept."""
        return self._found(key, _read_ptx)

    def _found(self, key: str, read: Callable[[Path, str], _Kernel]) -> _Kernel | None:
        self._require_own()
        folder = self.root / "kernels" / key
        try:
            kernel = read(folder, key)
        except OSError:
            if folder.is_dir():
                self._move_aside(folder, "a file is missing or cannot be read")
            return None
        except (DamagedFile, AttributeError, KeyError, TypeError, ValueError) as error:
            self._move_aside(folder, str(error))
            return None
        # The time of last use: eviction takes the oldest. A read-only cache keeps no such times.
        with suppress(OSError):
            os.utime(folder)
        return kernel

    def put(self, kernel: PtxKernel, source: str, log: str) -> Path:
        """Writes an entry beside its place and renames it; the first of two writers wins."""
        files = {
            "kernel.cu": source.encode(),
            "kernel.ptx": kernel.ptx.encode(),
            "kernel.log": log.encode(),
        }
        if isinstance(kernel, CompiledKernel):
            files["kernel.cubin"] = kernel.cubin
        facts = asdict(kernel)
        for elsewhere in ("ptx", "cubin", "folder"):
            facts.pop(elsewhere, None)
        facts["schema"] = SCHEMA
        facts["files"] = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
        text = (json.dumps(facts, indent=1) + "\n").encode()
        files |= {FACTS: text, FACTS_HASH: hashlib.sha256(text).hexdigest().encode()}
        folder = self._write_folder("kernels", kernel.key, files)
        self._note_growth(sum(len(data) for data in files.values()))
        return folder

    def keep_failure(self, key: str, source: str, log: str) -> Path:
        """Keeps a unit that did not compile, with its log, for the reader of the error."""
        old = self.root / "failed" / key
        shutil.rmtree(old, ignore_errors=True)
        files = {"kernel.cu": source.encode(), "kernel.log": log.encode()}
        return self._write_folder("failed", key, files)

    @contextmanager
    def lock(self, key: str) -> Iterator[None]:
        """Holds the lock of `key` against every other thread and process."""
        self._make_private("locks")
        path = self.root / "locks" / key
        descriptor = _take_lock(path)
        try:
            yield
        finally:
            # Removed while held; whoever waits on it sees that its file is gone and starts over.
            # One that stays, on a disk that became full or read-only, is free once it is closed.
            with suppress(OSError):
                path.unlink()
            # Said, not left to closing: a process forked meanwhile has the file open too.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)

    def _write_folder(self, part: str, key: str, files: dict[str, bytes]) -> Path:
        self._make_private(part)
        target = self.root / part / key
        with scratch_folder(target) as beside:
            for name, data in files.items():
                (beside / name).write_bytes(data)
            try:
                beside.rename(target)
            except OSError:
                if not target.is_dir():
                    raise
        return target

    def _make_private(self, part: str) -> None:
        folder = self.root / part
        if folder.is_dir():
            return
        self.root.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
        self._require_own()
        self.root.chmod(PRIVATE)
        folder.mkdir(mode=PRIVATE, exist_ok=True)

    def _require_own(self) -> None:
        """Raises where the folder is another user's: what lies in it would run as this one."""
        if self._is_own or not self.root.exists():
            return
        owner, user = self.root.stat().st_uid, os.getuid()
        if user not in (owner, 0):
            raise ArgumentError(
                f"the cache folder {self.root} belongs to user {owner}; machine code is only read "
                f"from your own folder; set {settings.CACHE_DIR} to another one."
            )
        self._is_own = True

    def _move_aside(self, folder: Path, reason: str) -> None:
        aside = self.root / "damaged" / f"{folder.name}-{os.urandom(4).hex()}"
        try:
            self._make_private("damaged")
            folder.rename(aside)
        except FileNotFoundError:
            return  # another process was first
        except OSError as error:  # of a cache that is another's, or on a full disk
            _log.warning("cache entry %s is damaged (%s); left there: %s", folder, reason, error)
            return
        _log.warning("cache entry %s is damaged (%s); moved to %s", folder.name, reason, aside)

    def _note_growth(self, n_bytes: int) -> None:
        from flashsmith.compile.cache import upkeep  # here: most processes write no entry

        self._since_count += 1
        if self._counted_bytes is None or self._since_count >= RECOUNT_EVERY:
            self._counted_bytes = upkeep.swept_bytes(self.root)
            self._since_count = 0
        else:
            self._counted_bytes += n_bytes
        if self._counted_bytes > self.limit_bytes:
            self._counted_bytes = upkeep.evict(self.root, self.limit_bytes)


def default_cache() -> KernelCache:
    """The user's cache, where and as large as the settings say."""
    root, limit = settings.cache_dir(), settings.cache_limit_bytes()
    known = _caches.get((root, limit))
    return known or _caches.setdefault((root, limit), KernelCache(root, limit))


_caches: dict[tuple[Path, int], KernelCache] = {}


def _take_lock(path: Path) -> int:
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        try:
            if os.fstat(descriptor).st_ino == path.stat().st_ino:
                return descriptor
        except FileNotFoundError:
            pass  # the holder before removed it
        os.close(descriptor)


def _read_entry(folder: Path, key: str) -> CompiledKernel:
    facts = _read_facts(folder, key)
    return CompiledKernel(
        **_read_common(folder, key, facts),
        cubin=_read_file(folder, "kernel.cubin", facts),
        resources=resources_from(facts["resources"]),
    )


def _read_ptx(folder: Path, key: str) -> PtxKernel:
    return PtxKernel(**_read_common(folder, key, _read_facts(folder, key)))


def _read_facts(folder: Path, key: str) -> JsonObject:
    text = (folder / FACTS).read_bytes()
    if hashlib.sha256(text).hexdigest().encode() != (folder / FACTS_HASH).read_bytes():
        raise DamagedFile(f"the hash of {FACTS} is not the stated one")
    facts: JsonObject = parse_json(text)
    if facts["schema"] != SCHEMA or facts["key"] != key:
        raise DamagedFile("it belongs to another key")
    return facts


def _read_file(folder: Path, name: str, facts: JsonObject) -> bytes:
    data = (folder / name).read_bytes()
    if hashlib.sha256(data).hexdigest() != facts["files"][name]:
        raise DamagedFile(f"the hash of {name} is not the stated one")
    return data


def _read_common(folder: Path, key: str, facts: JsonObject) -> _PtxFields:
    """The fields that kernels with and without machine code have in common."""
    seconds = facts["compile_seconds"]
    if not isinstance(seconds, float) or seconds < 0:
        raise DamagedFile(f"compile_seconds is {str(seconds)[:40]!r}; it must be a time")
    return {
        "name": text_from(facts, "name"),
        "arch": text_from(facts, "arch"),
        "ptx": _read_file(folder, "kernel.ptx", facts).decode(),
        "compiler": text_from(facts, "compiler"),
        "source_hash": text_from(facts, "source_hash"),
        "key": key,
        "compile_seconds": seconds,
        "folder": folder,
    }
