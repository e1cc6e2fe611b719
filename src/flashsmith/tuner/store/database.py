"""Measurements on disk: one SQLite file that many tuners may write, and that a kill cannot harm."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sqlite3
import time
from collections.abc import Iterable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from flashsmith.base.errors import DamagedFile, FileInUse, FlashsmithError, StorageError
from flashsmith.base.json_text import parse_json
from flashsmith.problem.text import problem_fields
from flashsmith.tuner.store.measurement import (
    SCHEMA,
    SCHEMA_OF_0_1,
    Measurement,
    MeasurementKey,
    measurement_from_fields,
)
from flashsmith.tuner.store.outcome import outcome_fields

_VERSION = 2
_TABLE = "evidence"
_TABLE_OF_0_1 = "measurement"  # kept as it is when its rows are taken over
_BUSY_SECONDS = 30.0
_RETRY_SECONDS = 0.05
_NETWORK_FILE_SYSTEMS = ("nfs", "cifs", "smb", "lustre", "gpfs", "fuse", "ceph", "9p", "beegfs")
_KEY = tuple(f.name for f in fields(MeasurementKey))
_REST = ("outcome", "gate", "moment", "environment")
_COLUMNS = (*_KEY, *_REST, "is_imported")
_COLUMNS_OF_0_1 = (*("source_hash" if name == "code" else name for name in _KEY), *_REST)
_SAID = {
    sqlite3.SQLITE_FULL: "the disk is full; make room and try again",
    sqlite3.SQLITE_READONLY: "it cannot be written; name another results file (--store)",
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened; check the path and who may write there",
    sqlite3.SQLITE_IOERR: "reading or writing it failed; check the disk",
}

_log = logging.getLogger("flashsmith.results")
Row = tuple[Any, ...]  # Any: what SQLite hands out


class ResultStore:
    """The open results file; one row a measurement, the first row of a key stays."""

    def __init__(self, path: Path, *, read_only: bool = False, is_foreign: bool = False) -> None:
        """Opens the file, or makes it; `read_only` reads it as it lies and never writes.

        Someone else's (`is_foreign`) is not even locked, unless a write-ahead log lies beside it.
        """
        self.path = path
        self._table = _TABLE
        if not read_only:
            path.parent.mkdir(parents=True, exist_ok=True)
        with _explained(path):
            self._db = _connect_to_read(path, is_foreign) if read_only else _connect(path)
        try:
            with _explained(path):
                self._prepare_to_read(is_foreign) if read_only else self._prepare()
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
        sql = f"INSERT OR IGNORE INTO {_TABLE} ({', '.join(_COLUMNS)}) VALUES ({marks})"
        return self._execute(sql, _row(measurement)).rowcount == 1

    def add_all(self, measurements: Iterable[Measurement]) -> int:
        """Keeps many in one transaction: all or, after a kill, none; returns how many are new."""
        with self._transaction():
            return sum(self.add(m) for m in measurements)

    def pass_gate(self, key: MeasurementKey) -> None:
        """Marks a measurement as choosable."""
        where = " AND ".join(f"{name} = ?" for name in _KEY)
        self._execute(f"UPDATE {_TABLE} SET gate = 1 WHERE {where}", _key_row(key))

    def get(self, key: MeasurementKey) -> Measurement | None:
        """The measurement of a key, or None."""
        where = " AND ".join(f"{name} = ?" for name in _KEY)
        sql = f"SELECT {', '.join(_COLUMNS)} FROM {_TABLE} WHERE {where}"
        with _explained(self.path):
            row = self._db.execute(sql, _key_row(key)).fetchone()
            return _measurement(row) if row else None

    def all(self) -> list[Measurement]:
        """Every measurement, in the order of making; rows that are none are said and left out."""
        if not self._table:
            return []
        of_0_1 = self._table == _TABLE_OF_0_1
        columns = _COLUMNS_OF_0_1 if of_0_1 else _COLUMNS
        sql = f"SELECT {', '.join(columns)} FROM {self._table} ORDER BY number"
        with _explained(self.path):
            return self._readable(self._db.execute(sql), of_0_1=of_0_1)

    def remove(self, keys: Iterable[MeasurementKey]) -> int:
        """Forgets measurements; returns how many were there."""
        where = " AND ".join(f"{name} = ?" for name in _KEY)
        with self._transaction():
            return sum(
                self._execute(f"DELETE FROM {_TABLE} WHERE {where}", _key_row(key)).rowcount
                for key in keys
            )

    def _readable(self, rows: Iterable[Row], *, of_0_1: bool) -> list[Measurement]:
        found, damaged = [], []
        for row in rows:
            try:
                found.append(_measurement_of_0_1(row) if of_0_1 else _measurement(row))
            except (FlashsmithError, ValueError, TypeError) as error:
                damaged.append(str(error))
        if damaged:
            _log.warning(
                "%s: %d of %d rows are not measurements and are left out; the first: %s",
                *(self.path, len(damaged), len(damaged) + len(found), damaged[0]),
            )
        return found

    def _prepare(self) -> None:
        # Write-ahead logging needs shared memory between processes, which network disks lack.
        self._set_journal("DELETE" if on_network_disk(self.path) else "WAL")
        self._db.execute("PRAGMA synchronous = FULL")
        # Asked without a lock first: who only reads need not wait for a tuner that writes.
        if self._version() == _VERSION:
            return
        with self._transaction():
            version = self._version()
            self._require_known(version)
            columns = ", ".join(f"{name} NOT NULL" for name in _COLUMNS)
            self._db.execute(
                f"CREATE TABLE IF NOT EXISTS {_TABLE} (number INTEGER PRIMARY KEY, {columns}, "
                f"UNIQUE ({', '.join(_KEY)}))"
            )
            if version == 1:
                self._take_over()
            self._db.execute(f"PRAGMA user_version = {_VERSION}")

    def _prepare_to_read(self, is_foreign: bool) -> None:
        version = self._version()
        self._require_known(version)
        nothing = "SELECT count(*) = 0 FROM sqlite_master"
        if not is_foreign and version == 0 and self._db.execute(nothing).fetchone()[0]:
            self._table = ""  # who made the file was killed before its table was there
            return
        if version == 1:
            self._table = _TABLE_OF_0_1
        _require_plain_table(self._db, self._table)

    def _require_known(self, version: int) -> None:
        if version not in (0, 1, _VERSION):
            raise DamagedFile(
                f"{self.path} has format {version}, this version reads up to {_VERSION}; "
                f"export it with the version that wrote it."
            )

    def _take_over(self) -> None:
        """Copies the rows of version 0.1; their table stays, and with it what cannot be read."""
        sql = f"SELECT {', '.join(_COLUMNS_OF_0_1)} FROM {_TABLE_OF_0_1} ORDER BY number"
        for measurement in self._readable(self._db.execute(sql), of_0_1=True):
            self.add(measurement)

    def _set_journal(self, mode: str) -> None:
        """SQLite does not wait for others while the journal is switched, so it is tried again."""
        until = time.monotonic() + _BUSY_SECONDS
        while True:
            try:
                self._db.execute(f"PRAGMA journal_mode = {mode}")
                return
            except sqlite3.OperationalError as error:
                if _code(error) != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                    raise
            time.sleep(_RETRY_SECONDS)

    def _version(self) -> int:
        return int(self._db.execute("PRAGMA user_version").fetchone()[0])

    def _execute(self, sql: str, values: tuple[object, ...] = ()) -> sqlite3.Cursor:
        with _explained(self.path):
            return self._db.execute(sql, values)

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            if self._db.in_transaction:  # a full disk has ended it already
                self._execute("ROLLBACK")
            raise
        self._execute("COMMIT")


def read_store(path: Path, *, is_foreign: bool = False) -> list[Measurement]:
    """The measurements of a results file, read as it lies and never written."""
    with ResultStore(path, read_only=True, is_foreign=is_foreign) as store:
        return store.all()


def _connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, timeout=_BUSY_SECONDS, isolation_level=None)


def _connect_to_read(path: Path, is_foreign: bool) -> sqlite3.Connection:
    log = path.with_name(f"{path.name}-wal")
    is_still = is_foreign and not (log.exists() and log.stat().st_size)
    # A folder that cannot be written has no room for SQLite's own files beside the database.
    is_still = is_still or not os.access(path.parent, os.W_OK)
    if not is_still and not is_foreign and path.with_name(f"{path.name}-journal").exists():
        _roll_back(path)
    uri = f"{path.resolve().as_uri()}?mode=ro{'&immutable=1' if is_still else ''}"
    db = sqlite3.connect(uri, uri=True, timeout=_BUSY_SECONDS, isolation_level=None)
    db.execute("PRAGMA trusted_schema = OFF")
    db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 1 << 20)  # no value of a row is as large
    return db


def _roll_back(path: Path) -> None:
    """Takes back what a killed writer left half done: who only reads may not, and would fail."""
    with contextlib.closing(_connect(path)) as db:
        db.execute("SELECT count(*) FROM sqlite_master").fetchone()


def _require_plain_table(db: sqlite3.Connection, name: str) -> None:
    """Raises unless `name` is a table that only holds values: reading a view runs its query."""
    found = db.execute("SELECT type, sql FROM sqlite_master WHERE name = ?", (name,)).fetchone()
    if found is None:
        raise DamagedFile("it has no table of measurements")
    kind, sql = str(found[0]), str(found[1] or "").upper()
    hidden = any(row[6] for row in db.execute(f"PRAGMA table_xinfo({name})"))
    if kind != "table" or "VIRTUAL" in sql or hidden:
        raise DamagedFile(f"{name} is not a plain table")


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Turns what SQLite and damaged rows raise into errors that name the file."""
    try:
        yield
    except DamagedFile as error:
        if str(path) in str(error):
            raise
        raise DamagedFile(f"{path}: {error}") from error
    except FlashsmithError:
        raise
    except (sqlite3.Error, ValueError, TypeError) as error:
        code = _code(error)
        if code == sqlite3.SQLITE_BUSY:
            raise FileInUse(
                f"{path} has been locked by another process for over {_BUSY_SECONDS:.0f} s; wait "
                f"for it, or name another results file."
            ) from error
        if code in _SAID:
            raise StorageError(f"{path}: {_SAID[code]} ({error}).") from error
        raise DamagedFile(
            f"{path} is not a results file ({error}); move it away, or name another."
        ) from error


def _code(error: Exception) -> int:
    """SQLite's result code without what it says in more detail; 0 for errors of Python's own."""
    code: int | None = getattr(error, "sqlite_errorcode", None)
    return (code or 0) & 0xFF


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
        json.dumps(dict(measurement.environment), sort_keys=True, allow_nan=False),
        int(measurement.is_imported),
    )


def _measurement(row: Row) -> Measurement:
    found = measurement_from_fields(_fields(_COLUMNS, row, SCHEMA))
    return replace(found, is_imported=row[-1] != 0)


def _measurement_of_0_1(row: Row) -> Measurement:
    return measurement_from_fields(_fields(_COLUMNS_OF_0_1, row, SCHEMA_OF_0_1))


def _fields(columns: tuple[str, ...], row: Row, schema: int) -> dict[str, object]:
    """A row as the fields of a line, to be checked as one."""
    values = dict(zip(columns, row, strict=True))
    outcome = parse_json(values.pop("outcome"))
    if not isinstance(outcome, dict):
        raise DamagedFile(f"outcome is {str(outcome)[:40]!r}; it must be an object.")
    gate = values.pop("gate")
    return {
        **values,
        **outcome,
        "schema": schema,
        "problem": parse_json(values["problem"]),
        "environment": parse_json(values["environment"]),
        "gate": bool(gate) if gate in (0, 1) else gate,
        "when": values["moment"],
    }
