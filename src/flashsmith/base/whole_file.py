"""Files and folders that are there whole or not at all, and errors of a disk that name them."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from flashsmith.base.errors import StorageError

_FULL = (errno.ENOSPC, errno.EDQUOT)
_SHUT = (errno.EACCES, errno.EPERM, errno.EROFS)


@contextlib.contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """Gives the name of a new file beside `path`, which takes its place at the end.

    Whatever happens before leaves `path` as it was and nothing beside it.
    """
    with named_in_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = scratch_beside(path)
        try:
            yield beside
            beside.replace(path)
        finally:
            beside.unlink(missing_ok=True)


@contextlib.contextmanager
def scratch_folder(path: Path) -> Iterator[Path]:
    """A new private folder beside `path`; what is still there at the end is removed."""
    beside = scratch_beside(path)
    beside.mkdir(mode=0o700)
    try:
        yield beside
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def scratch_beside(path: Path) -> Path:
    """A name that no process has: numbers of processes repeat, in containers at every start."""
    return path.with_name(f".{path.name}-{os.urandom(8).hex()}")


@contextlib.contextmanager
def named_in_errors(path: Path) -> Iterator[None]:
    """Turns what a disk refuses into an error that names the file or folder one asked for."""
    try:
        yield
    except OSError as error:
        raise StorageError(f"{path}: {disk_error(error)}.") from error


def is_disk_full(error: OSError) -> bool:
    """Whether there is no room, or none that this user may take."""
    return error.errno in _FULL


def disk_error(error: OSError) -> str:
    """What an error of a disk means, and what to do."""
    if is_disk_full(error):
        return "the disk is full; make room and try again"
    if error.errno in _SHUT:
        return f"it cannot be written ({error.strerror}); name another path"
    return f"{error.strerror or error}; check the path"
