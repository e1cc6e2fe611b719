"""Stores and exports of version 0.1: read, valid or refused with the reason, and nothing lost."""

import json
import sqlite3
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from flashsmith.compile.artefact import CompiledKernel
from flashsmith.kernels import parse_config
from flashsmith.problem.attention import AttentionProblem
from flashsmith.tuner.choose import measured
from flashsmith.tuner.choose.choice import choose
from flashsmith.tuner.run.candidates import Candidate
from flashsmith.tuner.run.ranking import bits_of, class_of
from flashsmith.tuner.store import stale, version_0_1
from flashsmith.tuner.store.database import ResultStore, read_store
from flashsmith.tuner.store.exchange import read_any, read_lines
from flashsmith.tuner.store.measurement import measurement_from_line
from flashsmith.tuner.store.stale import Standing, standings

COLUMNS = (
    *("gpu", "arch", "driver", "compiler", "source_hash", "config", "problem", "protocol"),
    *("outcome", "gate", "moment", "environment"),
)
CODES = version_0_1.code_by_source()["nvrtc 13.0.88"]["sm_90a"]
SOURCE, CODE = next(iter(CODES.items()))
CONFIG = (
    "hopper(BF16, 128, 2, 128): kv_2+q_4+overlap+pingpong+early_rescale+early_tests+stats_SUM"
    "+lazy_8+halves+tiles_DYNAMIC+late_draw+split+sections+o_smem+late_store+regs_232_40"
)
LINE = {
    "schema": 1,
    "gpu": "NVIDIA H200",
    "arch": "sm_90a",
    "driver": "580",
    "gate": True,
    "compiler": "nvrtc 13.0.88",
    "source_hash": SOURCE,
    "config": CONFIG,
    "when": "2026",
    "protocol": "final",
    "outcome": "Timed",
    "median_us": 9.5,
    "p20_us": 9,
    "p80_us": 10,
    "rounds": 31,
    "fingerprint": "aa11",
    "environment": {"sm_count": 132},
    "problem": {
        "batch": 16,
        "heads": 16,
        "kv_heads": 16,
        "q_len": 1024,
        "k_len": 1024,
        "d_head": 128,
        "dtype": "BF16",
        "causal": True,
        "diagonal": None,
        "scale": None,
        "layout": "bshd",
    },
}
SPLIT = {**LINE, "problem": {**LINE["problem"], "causal": False, "q_len": 4096, "k_len": 4096}}


def read(line):
    return measurement_from_line(json.dumps(line), "here")


def store_of_0_1(path, lines):
    """A results file as version 0.1 wrote it."""
    with sqlite3.connect(path) as db:
        names = ", ".join(f"{name} NOT NULL" for name in COLUMNS)
        key = ", ".join(COLUMNS[:8])
        db.execute(
            f"CREATE TABLE measurement (number INTEGER PRIMARY KEY, {names}, UNIQUE ({key}))"
        )
        for line in lines:
            outcome = {k: v for k, v in line.items() if k in ("outcome", "fingerprint", "rounds")}
            outcome |= {k: v for k, v in line.items() if k.endswith("_us")}
            values = {
                **line,
                "problem": json.dumps(line["problem"], sort_keys=True),
                "outcome": json.dumps(outcome),
                "gate": int(line["gate"]),
                "moment": line["when"],
                "environment": json.dumps(line["environment"]),
            }
            marks = ", ".join("?" * len(COLUMNS))
            db.execute(
                f"INSERT INTO measurement ({', '.join(COLUMNS)}) VALUES ({marks})",
                [values[name] for name in COLUMNS],
            )
        db.execute("PRAGMA user_version = 1")


def test_a_line_gets_the_code_of_its_source_and_a_problem_without_absent_values():
    found = read(LINE)
    assert found.key.code == CODE
    assert found.key.problem == AttentionProblem(16, 16, 16, 1024, 1024, 128, causal=True)
    assert "diagonal" not in found.to_line()
    assert measurement_from_line(found.to_line(), "here") == found


def test_a_row_of_an_unknown_source_is_kept_and_stale():
    unknown = read({**LINE, "source_hash": "0" * 64})
    assert unknown.key.code == f"source {'0' * 64}"
    assert measurement_from_line(unknown.to_line(), "here") == unknown
    other = read({**LINE, "compiler": "nvrtc 12.9"})
    never = read({**LINE, "source_hash": "", "outcome": "Refused", "reason": "too large"})
    found = [standing for _, standing in standings([unknown, other, never])]
    assert found == [Standing.STALE, Standing.STALE, Standing.CURRENT]


def test_a_store_is_taken_over_with_its_old_table_kept(tmp_path, caplog):
    path = tmp_path / "r.sqlite"
    bad = {**LINE, "config": "nonsense", "protocol": "race"}
    store_of_0_1(path, [LINE, bad, SPLIT])
    assert read_any(path) == read_store(path) == [read(LINE), read(SPLIT)]
    with ResultStore(path) as store:
        assert store.all() == [read(LINE), read(SPLIT)]
        assert store._db.execute("SELECT count(*) FROM measurement").fetchone()[0] == 3
    assert "1 of 3 rows are not measurements" in caplog.text
    with ResultStore(path) as again:
        assert len(again.all()) == 2


def test_the_shipped_table_and_the_committed_records_are_read():
    folder = Path(__file__).parents[2] / "benchmarks" / "results" / "h200"
    shipped = [m for path in measured.SHIPPED_FOLDER.glob("*.jsonl") for m in read_lines(path)]
    for found in (shipped, read_lines(folder / "tune.jsonl")):
        assert found
        assert not any(m.key.code.startswith(version_0_1.UNKNOWN) for m in found)


def test_rows_of_another_compiler_are_not_compared_and_a_check_of_none_is_no_success(
    monkeypatch, capsys
):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "tools"))
    import code_hashes

    other = SimpleNamespace(compiler="nvrtc 99.0")
    monkeypatch.setattr(stale, "find_nvrtc", lambda: other)
    monkeypatch.setattr(code_hashes, "find_nvrtc", lambda: other)
    monkeypatch.setattr(sys, "argv", ["code_hashes.py", "shipped"])
    assert code_hashes.main() == 1
    total = sum(len(read_lines(path)) for path in measured.SHIPPED_FOLDER.glob("*.jsonl"))
    told = f"{total} shipped rows under nvrtc 99.0: 0 current, 0 stale, {total} not checkable here"
    assert capsys.readouterr().out.splitlines() == [told]


@pytest.mark.parametrize(("code", "ends"), [("c0ffee", 0), ("decaf", 1)])
def test_a_stale_shipped_row_is_said_and_is_a_failure(code, ends, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "tools"))
    import code_hashes

    row = next(m for p in measured.SHIPPED_FOLDER.glob("*.jsonl") for m in read_lines(p))
    row = replace(row, key=replace(row.key, code="c0ffee"))
    monkeypatch.setattr(code_hashes, "read_lines", lambda path, is_ours: [row])
    monkeypatch.setattr(stale, "find_nvrtc", lambda: SimpleNamespace(compiler=row.key.compiler))
    monkeypatch.setattr(stale, "compile_many", lambda jobs: [object.__new__(CompiledKernel)])
    monkeypatch.setattr(stale, "_jobs", lambda key: ("a job",))
    monkeypatch.setattr(stale, "code_of", lambda kernels: code)
    monkeypatch.setattr(sys, "argv", ["code_hashes.py", "shipped"])
    assert code_hashes.main() == ends
    assert (f"{row.key.config} | " in capsys.readouterr().out) is bool(ends)


def test_same_bits_never_cross_from_a_whole_launch_to_a_split_one():
    """Version 0.1 had both under one fingerprint: that of a split launch is not believed."""
    split, whole = read(SPLIT), read({**SPLIT, "config": CONFIG.replace("split+", "")})
    assert (bits_of(split), bits_of(whole)) == ("", "aa11")
    candidates = [
        Candidate(parse_config(m.key.config), m.key.problem, None) for m in (split, whole)
    ]
    screened = dict(zip(candidates, (split, whole), strict=True))
    assert class_of(candidates, screened, candidates[1].config) == "aa11"
    assert class_of(candidates, screened, candidates[0].config) == "none"
    assert bits_of(read(LINE)) == "aa11"  # a causal launch splits nothing


@pytest.mark.parametrize(
    ("imported", "label"),
    [(False, "measured on this machine"), (True, "imported measurement")],
)
def test_an_imported_row_comes_after_ones_own_and_before_shipped_ones(
    tmp_path, monkeypatch, imported, label
):
    monkeypatch.setenv("FLASHSMITH_RESULTS", str(tmp_path / "r.sqlite"))
    mine = replace(read(LINE), is_imported=imported)
    shipped = choose(mine.key.problem, "sm_90a", gpu="NVIDIA H200")
    assert shipped.source == "shipped measurement"
    beside = replace(mine.key, config=shipped.config.short_form())
    with ResultStore(tmp_path / "r.sqlite") as store:
        store.add(mine)
        store.add(replace(mine, key=beside, gate=False))
    choice = choose(mine.key.problem, "sm_90a", gpu="NVIDIA H200")
    assert choice.source == label
