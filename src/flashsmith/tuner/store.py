"""Measurements on disk: one SQLite file that many tuners may write, and that a kill cannot harm."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import fields
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from flashsmith.base.errors import DamagedFile, FileInUse, FlashsmithError
from flashsmith.base.json_text import parse_json
from flashsmith.tuner.measurement import (
    Measurement,
    MeasurementKey,
    problem_fields,
    problem_from_fields,
)
from flashsmith.tuner.outcome import outcome_fields, outcome_from_fields

_VERSION = 1
_BUSY_SECONDS = 30.0
_NETWORK_FILE_SYSTEMS = ("nfs", "cifs", "smb", "lustre", "gpfs", "fuse", "ceph", "9p", "beegfs")
_KEY = tuple(f.name for f in fields(MeasurementKey))
_COLUMNS = (*_KEY, "outcome", "gate", "moment", "environment")


class ResultStore:
    """The open results file; one row a measurement, the newest row of a key counts."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        with _explained(path):
            self._db = sqlite3.connect(path, timeout=_BUSY_SECONDS, isolation_level=None)
        try:
            self._prepare()
        except BaseException:
            self._db.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the connection; what was added is on disk already."""
        self._db.close()

    def add(self, measurement: Measurement) -> bool:
        """Keeps a measurement; False when its key is there already, which then stays as it is."""
        marks = ", ".join("?" * len(_COLUMNS))
        sql = f"INSERT OR IGNORE INTO measurement ({', '.join(_COLUMNS)}) VALUES ({marks})"
        return self._execute(sql, _row(measurement)).rowcount == 1

    def add_all(self, measurements: Iterable[Measurement]) -> int:
        """Keeps many in one transaction: all or, after a kill, none; returns how many are new."""
        with self._transaction():
            return sum(self.add(m) for m in measurements)

    def pass_gate(self, key: MeasurementKey) -> None:
        """Marks a measurement as choosable."""
        where = " AND ".join(f"{name} = ?" for name in _KEY)
        self._execute(f"UPDATE measurement SET gate = 1 WHERE {where}", _key_row(key))

    def get(self, key: MeasurementKey) -> Measurement | None:
        """The measurement of a key, or None."""
        where = " AND ".join(f"{name} = ?" for name in _KEY)
        sql = f"SELECT {', '.join(_COLUMNS)} FROM measurement WHERE {where}"
        with _explained(self.path):
            row = self._db.execute(sql, _key_row(key)).fetchone()
            return _measurement(row) if row else None

    def all(self) -> list[Measurement]:
        """Every measurement, in the order in which they were made."""
        sql = f"SELECT {', '.join(_COLUMNS)} FROM measurement ORDER BY number"
        with _explained(self.path):
            return [_measurement(row) for row in self._db.execute(sql)]

    def remove(self, keys: Iterable[MeasurementKey]) -> int:
        """Forgets measurements; returns how many were there."""
        where = " AND ".join(f"{name} = ?" for name in _KEY)
        with self._transaction():
            return sum(
                self._execute(f"DELETE FROM measurement WHERE {where}", _key_row(key)).rowcount
                for key in keys
            )

    def _prepare(self) -> None:
        # Write-ahead logging needs shared memory between processes, which network disks lack.
        journal = "DELETE" if on_network_disk(self.path) else "WAL"
        self._execute(f"PRAGMA journal_mode = {journal}")
        self._execute("PRAGMA synchronous = FULL")
        # Asked without a lock first: who only reads need not wait for a tuner that writes.
        if self._version() == _VERSION:
            return
        with self._transaction():
            if self._version() not in (0, _VERSION):
                raise DamagedFile(
                    f"{self.path} has format {self._version()}, this version reads {_VERSION}; "
                    f"export it with the version that wrote it."
                )
            columns = ", ".join(f"{name} NOT NULL" for name in _COLUMNS)
            self._execute(
                f"CREATE TABLE IF NOT EXISTS measurement (number INTEGER PRIMARY KEY, {columns}, "
                f"UNIQUE ({', '.join(_KEY)}))"
            )
            self._execute(f"PRAGMA user_version = {_VERSION}")

    def _version(self) -> int:
        return int(self._execute("PRAGMA user_version").fetchone()[0])

    def _execute(self, sql: str, values: tuple[object, ...] = ()) -> sqlite3.Cursor:
        with _explained(self.path):
            return self._db.execute(sql, values)

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._execute("ROLLBACK")
            raise
        self._execute("COMMIT")


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Turns what SQLite and damaged rows raise into errors that name the file."""
    try:
        yield
    except FlashsmithError:
        raise
    except (sqlite3.Error, ValueError, TypeError) as error:
        if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_BUSY:
            raise FileInUse(
                f"{path} is kept by another process for more than {_BUSY_SECONDS:.0f} s; wait for "
                f"it, or name another results file."
            ) from error
        raise DamagedFile(
            f"{path} is not a results file ({error}); move it away, or name another."
        ) from error


def on_network_disk(path: Path) -> bool:
    """Whether a file lies on a network file system, as far as the system says."""
    mounts = Path("/proc/mounts")
    if not mounts.exists():
        return False
    real = path.resolve()
    best, kind = 0, ""
    for line in mounts.read_text().splitlines():
        _, point, name, *_ = line.split(" ")
        if real.is_relative_to(point) and len(point) >= best:
            best, kind = len(point), name
    return kind.startswith(_NETWORK_FILE_SYSTEMS)


def _key_row(key: MeasurementKey) -> tuple[object, ...]:
    problem = json.dumps(problem_fields(key.problem), sort_keys=True)
    return tuple(problem if name == "problem" else getattr(key, name) for name in _KEY)


def _row(measurement: Measurement) -> tuple[object, ...]:
    return (
        *_key_row(measurement.key),
        json.dumps(outcome_fields(measurement.outcome), sort_keys=True),
        int(measurement.gate),
        measurement.when,
        json.dumps(measurement.environment, sort_keys=True),
    )


def _measurement(row: tuple[Any, ...]) -> Measurement:  # Any: what SQLite hands out
    values = dict(zip(_COLUMNS, row, strict=True))
    values["problem"] = problem_from_fields(parse_json(values["problem"]))
    key = MeasurementKey(**{name: values[name] for name in _KEY})
    return Measurement(
        key,
        outcome_from_fields(parse_json(values["outcome"])),
        bool(values["gate"]),
        values["moment"],
        parse_json(values["environment"]),
    )
