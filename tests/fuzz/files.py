"""Damaged files of every kind: each is read as it was meant, or refused in words."""

import hashlib
import json
import shutil
import sqlite3
import zipfile
from dataclasses import replace

from damage import ODD, damaged_bytes, damaged_data

from flashsmith.base.dtypes import DType
from flashsmith.base.errors import DamagedFile, FlashsmithError, Unsupported
from flashsmith.compile.ahead_of_time.bundle import read_bundle, write_bundle
from flashsmith.compile.cache.kernel_cache import KernelCache
from flashsmith.compile.compiler import compile_kernel, compile_text
from flashsmith.kernels import parse_config
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.needs import Needs
from flashsmith.report.page import write_page
from flashsmith.report.sources import gather
from flashsmith.tuner.store import database
from flashsmith.tuner.store.database import ResultStore, read_store
from flashsmith.tuner.store.exchange import read_any, write_lines
from flashsmith.tuner.store.measurement import (
    Measurement,
    MeasurementKey,
    measurement_from_line,
)
from flashsmith.tuner.store.outcome import Timed

TINY = 'extern "C" __global__ void k(float* p) { p[threadIdx.x] = 1.0f; }\n'
SMALL = "(BF16, 64, 64, 32, 4): async+eager+swizzled+load_2_2_2_tiles+opt_softmax"
PROBLEM = AttentionProblem(1, 3, 3, 512, 512, 64, DType.BF16)


def require(holds, subject):
    """An assertion where ruff wants none: in a handler."""
    assert holds, subject


def cache_entries(draw, count, folder):
    """A look-up gives the kernel that was put there, or nothing."""
    cache = KernelCache(folder / "cache", 1 << 30)
    kernel = compile_text(TINY, "k", "sm_80", cache=cache)
    whole = {path.name: path.read_bytes() for path in kernel.folder.iterdir()}
    read = 0
    for number in range(count):
        shutil.rmtree(kernel.folder, ignore_errors=True)
        kernel.folder.mkdir(parents=True)
        files = dict(whole)
        name = draw.choice(sorted(files))
        if draw.random() < 0.2 and name == "artefact.json":
            files[name] = damaged_data(draw, json.loads(files[name])).encode()
            files["artefact.sha256"] = hashlib.sha256(files[name]).hexdigest().encode()
            is_forged = True
        else:
            files[name] = damaged_bytes(draw, files[name])
            is_forged = False
        for one, data in files.items():
            (kernel.folder / one).write_bytes(data)
        found = cache.get(kernel.key)
        assert found is None or is_forged or found == kernel, f"entry {number}: another kernel"
        read += found is not None
    return read


def bundles(draw, count, folder):
    """A bundle gives the kernel that was put there, or is refused."""
    config, needs = parse_config(SMALL), Needs()
    kernel = compile_kernel(config, needs, "sm_80")
    path = folder / "good.bundle"
    write_bundle([(config, needs, kernel)], path)
    good, whole = read_bundle(path).kernel(config, needs, "sm_80"), path.read_bytes()
    bad, read = folder / "bad.bundle", 0
    for number in range(count):
        is_forged = draw.random() < 0.25
        if is_forged:
            _forge(draw, path, bad)
        else:
            bad.write_bytes(damaged_bytes(draw, whole))
        try:
            found = read_bundle(bad).kernel(config, needs, "sm_80")
        except DamagedFile:
            continue
        except Unsupported:  # whole, and without this kernel
            require(is_forged, f"bundle {number}")
            continue
        assert is_forged or found == good, f"bundle {number}: another kernel"
        read += 1
    return read


def _forge(draw, source, target):
    """A bundle whose manifest says something else, under a hash that fits."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for name in old.namelist():
            data = old.read(name)
            if name == "manifest.json":
                data = damaged_data(draw, json.loads(data)).encode()
                new.comment = hashlib.sha256(data).hexdigest().encode()
            new.writestr(name, data)


def measured(number=0, **changes):
    key = MeasurementKey("a GPU", "sm_90a", "1", "nvrtc", "c0de", SMALL, PROBLEM, "final")
    key = replace(key, driver=str(number), **changes)
    environment = {"sm_count": 132, "packages": {"numpy": "2"}}
    return Measurement(key, Timed(7.5, 7.0, 8.0, 21, "f" * 16), True, "2026", environment)


def import_lines(draw, count, folder):
    """A line is a measurement or refused; what was taken can be kept, sent on and shown."""
    facts = (
        {},
        {"scale": 0.5},
        {"causal": True, "diagonal": -3},
        {"window_left": 7},
        {"softcap": 5.0},
    )
    lines = [measured(problem=replace(PROBLEM, **given)).to_line() for given in facts]
    taken = []
    for _ in range(count):
        line = draw.choice(lines)
        if draw.random() < 0.2:
            text = damaged_bytes(draw, line.encode()).decode("utf-8", "replace")
        else:
            text = damaged_data(draw, json.loads(line))
        try:
            taken.append(measurement_from_line(text, "line"))
        except DamagedFile as error:
            require(str(error).startswith("line: "), text)
    with ResultStore(folder / "taken.sqlite") as store:
        for measurement in taken:
            store.add(measurement)
        kept = store.all()
    write_lines(kept, folder / "sent.jsonl")
    assert len(read_any(folder / "sent.jsonl")) == len(kept)
    if kept:
        write_page(gather([folder / "sent.jsonl"]), folder / "page.html")
    return len(taken)


def stores(draw, count, folder):
    """A crafted database is read without being run; rows that are none are left out."""
    read = 0
    for number in range(count):
        path = folder / f"crafted{number}.sqlite"
        with ResultStore(path) as store:
            store.add_all(measured(n) for n in range(3))
        _craft(draw, path)
        try:
            found = read_store(path, is_foreign=True)
        except FlashsmithError as error:
            require(path.name in str(error), str(error))
            continue
        assert all(isinstance(m.outcome.median_us, float | int) for m in found)
        read += 1
    return read


_CRAFTED = (
    "UPDATE evidence SET {column} = x'00ff00' WHERE number = 2",
    "UPDATE evidence SET {column} = '[1, 2]' WHERE number = 2",
    "UPDATE evidence SET {column} = 'NaN' WHERE number = 2",
    "UPDATE evidence SET {column} = 9e999",
    "UPDATE evidence SET {column} = 9223372036854775807",
    "ALTER TABLE evidence DROP COLUMN moment",
    "ALTER TABLE evidence ADD COLUMN more AS (randomblob(1000000000))",
    "DROP TABLE evidence; CREATE VIEW evidence AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL "
    "SELECT i + 1 FROM n) SELECT i AS number FROM n",
    "DROP TABLE evidence",
    "PRAGMA user_version = 77",
)


def _craft(draw, path):
    if draw.random() < 0.2:
        path.write_bytes(damaged_bytes(draw, path.read_bytes()))
        return
    sql = draw.choice(_CRAFTED)
    with sqlite3.connect(path, isolation_level=None) as db:
        if draw.random() < 0.3:
            value = draw.choice([odd for odd in ODD if isinstance(odd, str | float | None)])
            column = draw.choice(("outcome", "problem", "environment", "gate", "config"))
            db.execute(f"UPDATE OR IGNORE {database._TABLE} SET {column} = ?", (value or "",))
        else:
            column = draw.choice(database._COLUMNS)
            try:
                db.executescript(sql.format(column=column))
            except sqlite3.Error:
                db.execute("DELETE FROM evidence")
    db.close()
