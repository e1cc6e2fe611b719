"""The results file: nothing is lost, nothing is kept twice, and foreign lines are checked."""

import json
import shutil
import signal
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from flashsmith.base.dtypes import DType
from flashsmith.base.errors import ArgumentError, DamagedFile, FileInUse, StorageError
from flashsmith.kernels import get_kernel_configs
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.text import problem_fields
from flashsmith.tuner.store import database as store_module
from flashsmith.tuner.store import exchange
from flashsmith.tuner.store.database import ResultStore
from flashsmith.tuner.store.differences import differences
from flashsmith.tuner.store.measurement import Measurement, MeasurementKey, measurement_from_line
from flashsmith.tuner.store.outcome import (
    DidNotCompile,
    DidNotRun,
    Refused,
    Timed,
    TimedOut,
    Verified,
    Wrong,
)

PROBLEM = AttentionProblem(1, 3, 1, 257, 300, 128, DType.BF16, causal=True, diagonal=-3)
FIELDS = problem_fields(PROBLEM)
CONFIG = get_kernel_configs("tune")[0].short_form()
KEY = MeasurementKey(
    "NVIDIA H200", "sm_90a", "580.1", "nvrtc 13.0", "ab12", CONFIG, PROBLEM, "screen"
)
OUTCOMES = [
    Timed(10.5, 10.0, 11.0, 15, "f00d"),
    Verified("f00d"),
    Refused("too large"),
    DidNotCompile("static assertion"),
    DidNotRun("illegal address"),
    TimedOut(5.0),
    Wrong("off by 3"),
]


def measured(number: int = 0, **changes: object) -> Measurement:
    key = replace(KEY, problem=replace(PROBLEM, q_len=100 + number))
    values = {"outcome": OUTCOMES[0], "when": "2026-11-15T09:00:00Z", **changes}
    return Measurement(key, **values)


@pytest.mark.parametrize("outcome", OUTCOMES, ids=lambda o: type(o).__name__)
def test_every_outcome_comes_back_from_store_and_line(tmp_path, outcome):
    measurement = measured(outcome=outcome, environment={"clock_mhz": 1980})
    with ResultStore(tmp_path / "r.sqlite") as store:
        assert store.add(measurement)
        assert store.get(measurement.key) == measurement
    assert measurement_from_line(measurement.to_line(), "here") == measurement


def test_a_key_is_kept_once_and_each_part_of_it_makes_another(tmp_path):
    with ResultStore(tmp_path / "r.sqlite") as store:
        assert store.add(measured())
        assert not store.add(measured(outcome=Verified("other")))
        assert store.get(measured().key).outcome == OUTCOMES[0]
        for name in ("gpu", "arch", "driver", "compiler", "code", "protocol"):
            assert store.add(replace(measured(), key=replace(measured().key, **{name: "x"})))
        assert len(store.all()) == 7


def test_the_gate_is_passed_by_name(tmp_path):
    with ResultStore(tmp_path / "r.sqlite") as store:
        store.add_all([measured(0), measured(1)])
        store.pass_gate(measured(1).key)
        assert [m.gate for m in store.all()] == [False, True]


def test_a_failed_transaction_leaves_nothing_behind(tmp_path):
    def broken():
        yield measured(0)
        raise RuntimeError("killed here")

    with ResultStore(tmp_path / "r.sqlite") as store:
        with pytest.raises(RuntimeError, match="killed here"):
            store.add_all(broken())
        assert store.all() == []


def test_a_network_disk_gets_a_journal_that_works_there(tmp_path, monkeypatch):
    modes = []
    for network in (False, True):
        monkeypatch.setattr(store_module, "on_network_disk", lambda _, value=network: value)
        with ResultStore(tmp_path / f"{network}.sqlite") as store:
            modes.append(store._db.execute("PRAGMA journal_mode").fetchone()[0])
    assert modes == ["wal", "delete"]


WRITER = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[3])
from test_store import measured
from flashsmith.tuner.store.database import ResultStore
with ResultStore(Path(sys.argv[1])) as store:
    for number in range(int(sys.argv[2])):
        if store.get(measured(number).key) is None and store.add(measured(number)):
            print(number, flush=True)
"""


def start_writer(path, count):
    here = str(Path(__file__).parent)
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), str(count), here],
        stdout=subprocess.PIPE,
        text=True,
    )


def test_killed_at_twenty_moments_no_measurement_is_lost_or_made_twice(tmp_path):
    path, count, said = tmp_path / "r.sqlite", 400, []
    for kill in range(20):
        writer = start_writer(path, count)
        for _ in range(3 + 7 * kill % 11):
            line = writer.stdout.readline()
            if not line:
                break
            said.append(int(line))
        writer.send_signal(signal.SIGKILL)
        said += [int(line) for line in writer.stdout.read().split()]
        writer.wait()
    with ResultStore(path) as store:
        kept = [m.key.problem.q_len - 100 for m in store.all()]
        assert store._db.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
    # A row can be on disk before its writer said so, never the other way round.
    assert set(said) <= set(kept)
    assert len(kept) == len(set(kept))
    assert len(said) == len(set(said))


def test_two_writers_share_one_file(tmp_path):
    writers = [start_writer(tmp_path / "r.sqlite", 60) for _ in range(2)]
    said = [int(line) for writer in writers for line in writer.communicate()[0].split()]
    assert sorted(said) == list(range(60))


def test_lines_go_out_and_come_back(tmp_path):
    path = tmp_path / "m.jsonl"
    assert exchange.write_lines([measured(n) for n in range(3)], path) == 3
    assert exchange.read_any(path) == [measured(n) for n in range(3)]
    with ResultStore(tmp_path / "r.sqlite") as store:
        store.add_all(exchange.read_any(path))
    assert exchange.read_any(tmp_path / "r.sqlite") == [measured(n) for n in range(3)]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"schema": 7}, "schema is '7', this version reads up to 2"),
        ({"outcome": "__import__('os')"}, "it must be one of Timed"),
        ({"median_us": "fast"}, "median_us of Timed is 'fast'"),
        ({"median_us": True}, "median_us of Timed is 'True'"),
        ({"median_us": 0}, "median_us of Timed is 0; it must be above 0"),
        ({"median_us": -5.0}, "median_us of Timed is -5.0; it must be above 0"),
        ({"p80_us": float("nan")}, "NaN is not a number of JSON"),
        ({"rounds": 10**30}, "rounds of Timed is 1000"),
        ({"config": "(FP16, 128): nonsense"}, "line 1"),
        ({"gpu": 5}, "gpu is '5'; it must be a text"),
        ({"gpu": "x" * 3000}, "a text of at most 2000 letters"),
        ({"problem": {"batch": 1}}, "its fields are batch, heads"),
        ({"problem": {**FIELDS, "k_len": 10**400}}, "k_len of the problem is 1000"),
        ({"problem": {**FIELDS, "batch": 0}}, "batch of the problem is 0; it must be from 1 to"),
        ({"problem": {**FIELDS, "scale": "big"}}, "in the problem: scale is 'big'"),
        ({"problem": {**FIELDS, "diagonal": 10**12}}, "diagonal of the problem is 1000"),
        ({"gate": "yes"}, "gate is 'yes'; it must be true or false"),
        ({"when": None}, "when is 'None'; it must be a text"),
        ({"environment": {"a": float("inf")}}, "Infinity is not a number of JSON"),
        ({"environment": {"registers": "many"}}, "registers of the environment is 'many'"),
        ({"environment": {"note": "x" * 30_000}}, "environment takes more than 20,000 letters"),
        ({"code": 7}, "code is '7'; it must be a text"),
        ({"arch": "\ud800"}, "line 1: not a line of JSON"),
    ],
)
def test_a_foreign_line_is_refused_by_field(tmp_path, change, says):
    data = json.loads(measured().to_line()) | change
    path = tmp_path / "m.jsonl"
    path.write_text(json.dumps(data))
    with pytest.raises(DamagedFile, match=says):
        exchange.read_any(path)


@pytest.mark.parametrize("line", ["[" * 100_000, "1" * 5000], ids=["deep", "long"])
def test_a_line_that_python_cannot_hold_is_no_line_of_json(line):
    with pytest.raises(DamagedFile, match="here: not a line of JSON"):
        measurement_from_line(line, "here")


def test_what_is_no_results_file_is_said(tmp_path):
    path = tmp_path / "r.sqlite"
    path.write_bytes(b"SQLite format 3\0" + b"garbage" * 100)
    with pytest.raises(DamagedFile, match="not a results file"):
        exchange.read_any(path)
    with pytest.raises(ArgumentError, match="does not exist"):
        exchange.read_any(tmp_path / "none")


def test_differences_name_what_changed_across_compilers():
    faster = replace(
        measured(),
        key=replace(measured().key, compiler="nvrtc 14"),
        outcome=Timed(5.25, 5, 6, 15, "f00d"),
    )
    (difference,) = differences([measured()], [faster])
    assert (difference.before_us, difference.after_us, difference.ratio) == (10.5, 5.25, 0.5)
    assert differences([measured()], [measured()]) == []


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE evidence SET problem = '[' WHERE number = 1",
        "UPDATE evidence SET problem = 5 WHERE number = 1",
        "UPDATE evidence SET outcome = x'ff00' WHERE number = 1",
        "UPDATE evidence SET outcome = '[1]' WHERE number = 1",
        "UPDATE evidence SET gate = 'yes' WHERE number = 1",
        "UPDATE evidence SET environment = '{\"a\": NaN}' WHERE number = 1",
        "UPDATE evidence SET moment = x'00' WHERE number = 1",
    ],
)
def test_a_damaged_row_is_left_out_and_said(tmp_path, caplog, change):
    path = tmp_path / "r.sqlite"
    with ResultStore(path) as store:
        store.add_all([measured(0), measured(1)])
    with sqlite3.connect(path) as database:
        database.execute(change)
    assert store_module.read_store(path) == [measured(1)]
    assert "1 of 2 rows are not measurements and are left out" in caplog.text


def test_a_damaged_table_is_said_with_the_file(tmp_path):
    path = tmp_path / "r.sqlite"
    with ResultStore(path) as store:
        store.add(measured())
    with sqlite3.connect(path) as database:
        database.execute("ALTER TABLE evidence RENAME COLUMN gate TO other")
    with pytest.raises(DamagedFile, match=r"r\.sqlite is not a results file"):
        store_module.read_store(path)


def test_a_folder_is_no_results_file(tmp_path):
    with pytest.raises(StorageError, match="it cannot be opened; check the path"):
        ResultStore(tmp_path)


def test_who_reads_does_not_wait_for_who_writes_and_who_writes_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(store_module, "_BUSY_SECONDS", 0.05)
    path = tmp_path / "r.sqlite"
    with ResultStore(path) as writer:
        writer.add(measured())
        with writer._transaction(), ResultStore(path) as reader:
            assert len(reader.all()) == 1
            with pytest.raises(FileInUse, match=r"r\.sqlite has been locked by another process"):
                reader.add(measured(1))


def test_a_results_file_in_a_folder_that_cannot_be_written_is_readable(tmp_path, monkeypatch):
    path = tmp_path / "r.sqlite"
    with ResultStore(path) as store:
        store.add(measured())
    monkeypatch.setattr(store_module.os, "access", lambda *_: False)  # root may write anywhere
    assert store_module.read_store(path) == [measured()]
    assert not list(tmp_path.glob("*-shm"))


def test_a_file_whose_maker_was_killed_before_its_table_was_there_is_empty(tmp_path):
    path = tmp_path / "r.sqlite"
    sqlite3.connect(path).execute("PRAGMA journal_mode = WAL").connection.close()
    assert store_module.read_store(path) == []
    with ResultStore(path) as store:
        assert store.add(measured())
    assert store_module.read_store(path) == [measured()]


def test_what_a_killed_writer_left_half_done_is_taken_back_by_who_only_reads(tmp_path, monkeypatch):
    monkeypatch.setattr(store_module, "on_network_disk", lambda path: True)  # journals, no log
    path, killed = tmp_path / "r.sqlite", tmp_path / "killed" / "r.sqlite"
    killed.parent.mkdir()
    with ResultStore(path) as store:
        store.add(measured())
        store._db.execute("PRAGMA cache_size = 1")
        with store._transaction():
            for number in range(1, 200):  # more than its memory holds: some reaches the disk
                store.add(measured(number))
            for name in ("r.sqlite", "r.sqlite-journal"):
                shutil.copy(tmp_path / name, killed.parent / name)
    assert store_module.read_store(killed) == [measured()]


def test_a_full_disk_is_said_as_that(tmp_path):
    with ResultStore(tmp_path / "r.sqlite") as store:
        store._db.execute("PRAGMA max_page_count = 1")
        with pytest.raises(StorageError, match=r"r\.sqlite: the disk is full; make room"):
            store.add_all(measured(n) for n in range(500))
        assert store.all() == []


OPENER = """
import sys, time
from pathlib import Path
from flashsmith.tuner.store.database import ResultStore
while not Path(sys.argv[2]).exists():
    time.sleep(0.001)
with ResultStore(Path(sys.argv[1])) as store:
    print(len(store.all()))
"""


def test_tuners_that_start_together_on_a_new_file_all_get_in(tmp_path):
    go = tmp_path / "go"
    command = [sys.executable, "-c", OPENER, str(tmp_path / "r.sqlite"), str(go)]
    openers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(6)]
    go.touch()
    assert [opener.communicate()[0].strip() for opener in openers] == ["0"] * 6


@pytest.mark.parametrize(
    ("sql", "says"),
    [
        (
            "DROP TABLE evidence; CREATE VIEW evidence AS WITH RECURSIVE n(x) AS (VALUES(1) UNION "
            "ALL SELECT x FROM n) SELECT x FROM n",
            "evidence is not a plain table",
        ),
        ("DROP TABLE evidence", "it has no table of measurements"),
        (
            "DROP TABLE evidence; CREATE VIRTUAL TABLE evidence USING fts5(gpu)",
            "evidence is not a plain table",
        ),
        (
            "ALTER TABLE evidence ADD COLUMN made AS (gpu || arch)",
            "evidence is not a plain table",
        ),
        ("PRAGMA user_version = 9", "has format 9, this version reads up to 2"),
    ],
    ids=["view", "none", "virtual", "generated", "version"],
)
def test_a_foreign_database_that_is_not_plain_is_refused_and_not_run(tmp_path, sql, says):
    path = tmp_path / "theirs.sqlite"
    with ResultStore(path) as store:
        store.add(measured())
    database = sqlite3.connect(path)
    database.executescript(sql)
    database.close()
    with pytest.raises(DamagedFile, match=says):
        exchange.read_any(path)


def test_a_foreign_database_is_not_written_and_rows_in_its_log_count(tmp_path):
    path = tmp_path / "theirs.sqlite"
    with ResultStore(path) as store:
        store.add(measured(0))
    before = path.read_bytes()
    assert exchange.read_any(path) == [measured(0)]
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["theirs.sqlite"]
    with ResultStore(path) as store:
        store.add(measured(1))
        assert exchange.read_any(path) == [measured(0), measured(1)]
