"""Standard streams whose reader may leave early: `flashsmith configs | head -1` ends well."""

from __future__ import annotations

import io
import os
import sys
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class _LeftAlone(io.FileIO):
    """A descriptor that takes what nobody reads any more, and says nothing."""

    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            _lead_nowhere(self.fileno())
            return memoryview(data).nbytes


def let_readers_leave() -> None:
    """Replaces stdout and stderr; a verb then goes on to its end, and its exit code is its own."""
    sys.stdout, sys.stderr = _tolerant(sys.stdout), _tolerant(sys.stderr)


def drop_output() -> None:
    """Forgets what stdout could not take: it would be tried again when Python ends."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        _lead_nowhere(sys.stdout.fileno())


def _lead_nowhere(descriptor: int) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)


def _tolerant(stream: TextIO) -> TextIO:
    if not isinstance(stream, io.TextIOWrapper):
        return stream  # a test's, or a notebook's
    stream.flush()
    raw = _LeftAlone(stream.fileno(), "wb", closefd=False)
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )
