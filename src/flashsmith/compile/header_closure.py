"""Which flashsmith headers a unit includes, at any depth, and one hash over them."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import NamedTuple

from flashsmith.base.errors import FlashsmithError

INCLUDE_ROOT = Path(__file__).resolve().parent.parent / "cuda" / "include"
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"(flashsmith/[^"]+)"', re.MULTILINE)


class _Header(NamedTuple):
    """One header as last read; `stamp` tells whether the file is still that one."""

    stamp: tuple[int, int]
    digest: bytes
    includes: tuple[str, ...]


_read_headers: dict[Path, _Header] = {}


def header_closure(text: str, root: Path = INCLUDE_ROOT) -> list[str]:
    """The headers that `text` includes, those they include, and so on; sorted."""
    return sorted(_closure(text, root))


def closure_hash(text: str, root: Path = INCLUDE_ROOT) -> str:
    """SHA-256 over names and contents of the closure; costs one `stat` a header when warm."""
    total = hashlib.sha256()
    for name, header in sorted(_closure(text, root).items()):
        total.update(name.encode() + b"\0" + header.digest)
    return total.hexdigest()


def _closure(text: str, root: Path) -> dict[str, _Header]:
    waiting = _INCLUDE.findall(text)
    closure: dict[str, _Header] = {}
    while waiting:
        name = waiting.pop()
        if name not in closure:
            closure[name] = _header(root / name, name)
            waiting.extend(closure[name].includes)
    return closure


def _header(path: Path, name: str) -> _Header:
    try:
        stat = path.stat()
        stamp = (stat.st_mtime_ns, stat.st_size)
        known = _read_headers.get(path)
        if known is not None and known.stamp == stamp:
            return known
        content = path.read_bytes()
    except OSError as error:
        raise FlashsmithError(
            f'#include "{name}": no such header in {path.parent}; includes are written '
            f'"flashsmith/…"; reinstall flashsmith or correct the name.'
        ) from error
    includes = tuple(_INCLUDE.findall(content.decode()))
    header = _Header(stamp, hashlib.sha256(content).digest(), includes)
    _read_headers[path] = header
    return header
