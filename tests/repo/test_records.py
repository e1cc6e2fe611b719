"""Evidence is appended to or deleted, never edited: every line of a record is the one it was."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import record_lines  # noqa: E402

KNOWN = record_lines.listed(record_lines.LIST.read_text(encoding="utf-8"))
FILES = record_lines.record_files()


@pytest.mark.parametrize("name", sorted(FILES))
def test_every_line_of_a_record_is_listed(name):
    changed = [n for n, line in enumerate(FILES[name], start=1) if line not in set(KNOWN[name])]
    assert not changed, (
        f"lines {changed[:5]} of {name} were edited, or are new: run tools/record_lines.py"
    )


def test_an_edited_line_is_refused_and_an_appended_one_is_added(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(record_lines, "ROOT", tmp_path)
    monkeypatch.setattr(record_lines, "LIST", tmp_path / "lines.txt")
    monkeypatch.setattr(sys, "argv", ["record_lines.py"])
    record = tmp_path / "benchmarks" / "results" / "a.jsonl"
    record.parent.mkdir(parents=True)
    record.write_text('{"us": 1}\n{"us": 2}\n')
    assert record_lines.main() == 0
    record.write_text('{"us": 1}\n{"us": 2}\n{"us": 3}\n')
    assert record_lines.main() == 0
    record.write_text('{"us": 1}\n{"us": 9}\n{"us": 3}\n')
    assert record_lines.main() == 1
    assert "1 new lines while 1 lines of records are gone: edited?" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["record_lines.py", "--deleted"])
    assert record_lines.main() == 0


def test_the_list_itself_only_grows():
    """Against the commit before, where this is a checkout with one."""
    path = record_lines.LIST.relative_to(ROOT).as_posix()
    git = ["git", "-C", str(ROOT), "show", f"HEAD:{path}"]
    before = subprocess.run(git, capture_output=True, text=True, check=False)
    if before.returncode:
        pytest.skip("no earlier list to compare with")
    for name, lines in record_lines.listed(before.stdout).items():
        assert KNOWN.get(name, [])[: len(lines)] == lines, name
