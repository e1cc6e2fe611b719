"""Records: what is written reads back, and what is damaged is named by line and field."""

import errno
import json
from dataclasses import asdict

import pytest

from flashsmith.base.errors import DamagedFile, StorageError
from flashsmith.measure import record as record_module
from flashsmith.measure.environment import commit_of_checkout, environment_of
from flashsmith.measure.interleaved import Comparison, Timed
from flashsmith.measure.record import Record, append_records, read_records, records_of
from flashsmith.measure.statistics import summarize
from flashsmith.problem.attention import AttentionProblem
from flashsmith.runtime.devices import open_device

PROBLEM = AttentionProblem(1, 16, 2, 1000, 1000, 128, causal=True)


def timed(name, time_us, ratio):
    return Timed(name, (time_us,), summarize([time_us]), summarize([ratio]))


@pytest.fixture(scope="module")
def environment():
    return environment_of(open_device("emulator"), compiler="nvrtc 13.4")


@pytest.fixture
def records(environment):
    run = Comparison(
        "burst", (timed("peer", 200.0, 1.0), timed("ours", 100.0, 2.0)), summarize([1.001]), ()
    )
    return records_of(run, PROBLEM, environment, suite="smoke", flops=2e9)


def test_records_read_back_as_written(records, tmp_path):
    path = tmp_path / "new" / "records.jsonl"
    append_records(path, records[:1])
    append_records(path, records[1:])
    assert read_records(path) == records


def test_a_record_says_what_how_fast_and_on_what(records, environment):
    ours = records[1]
    assert ours.what["name"] == "ours"
    assert (ours.what["dtype"], ours.what["kv_heads"], ours.what["causal"]) == ("BF16", 2, True)
    assert (ours.result["tflops"], ours.result["ratio"]) == (20.0, 2.0)
    assert not ours.result["void"]
    assert ours.environment == asdict(environment)
    assert ours.environment["compiler"] == "nvrtc 13.4"


def test_a_copy_without_a_repository_is_told_its_commit(monkeypatch):
    monkeypatch.setenv("FLASHSMITH_COMMIT", "0123abcd")
    environment = environment_of(open_device("emulator"))
    assert (environment.commit, environment.dirty) == ("0123abcd", False)


def test_the_commit_of_a_checkout_is_hexadecimal_or_unknown():
    commit, _ = commit_of_checkout()
    assert commit == "unknown" or int(commit, 16) >= 0


def damaged(line, **changes):
    data = json.loads(line)
    for path, value in changes.items():
        section, _, name = path.partition("__")
        (data[section] if name else data)[name or section] = value
    return json.dumps(data)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"schema": 9}, "line 2: schema is '9'; this version reads up to 2"),
        ({"what": []}, "line 2: field 'what' is missing or not an object"),
        ({"result__median_us": 0}, "line 2: field 'result.median_us' is 0; it must be a number"),
        ({"result__ratio": "fast"}, "line 2: field 'result.ratio' is 'fast'"),
        ({"environment__date": 5}, "line 2: field 'environment.date' is missing or not a text"),
    ],
)
def test_a_damaged_field_is_named_with_its_line(records, tmp_path, changes, says):
    path = tmp_path / "records.jsonl"
    lines = [records[0].to_line(), damaged(records[0].to_line(), **changes)]
    path.write_text("\n".join(lines))
    with pytest.raises(DamagedFile, match=says):
        read_records(path)


@pytest.mark.parametrize(("text", "says"), [("{", "line 1: not JSON"), ("[]", "this is list")])
def test_a_line_that_is_no_record_is_named(tmp_path, text, says):
    path = tmp_path / "records.jsonl"
    path.write_text(text)
    with pytest.raises(DamagedFile, match=says):
        read_records(path)


def test_a_file_that_is_not_there_is_said(tmp_path):
    with pytest.raises(DamagedFile, match="cannot be read"):
        read_records(tmp_path / "none.jsonl")


def test_half_a_line_of_a_full_disk_is_taken_back(tmp_path, monkeypatch):
    path = tmp_path / "records.jsonl"
    record = Record({"name": "x"}, {"median_us": 1.0}, {"device": "d", "date": "", "commit": ""})
    append_records(path, [record])
    whole = path.read_bytes()

    def half(file, data):
        file.write(data[: len(data) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(record_module, "_write_all", half)
    with pytest.raises(StorageError, match=r"records\.jsonl: the disk is full; make room"):
        append_records(path, [record])
    assert path.read_bytes() == whole
