"""Evidence is appended to or deleted, never edited: every line of a record is the one it was."""

import shutil
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


EARLIER = 3  # commits of the list that it is compared with; the newest may be this very list


def git(root, *arguments):
    if shutil.which("git") is None:
        return ""
    ran = subprocess.run(
        ["git", "-C", str(root), *arguments], capture_output=True, text=True, check=False
    )
    return ran.stdout if ran.returncode == 0 else ""


def earlier_lists(root, path):
    """The list as the last commits that touched it have it; none without git or history."""
    commits = git(root, "log", f"-{EARLIER}", "--format=%H", "--", path).split()
    return [text for commit in commits if (text := git(root, "show", f"{commit}:./{path}"))]


def lost(now, before):
    """The files of which a list does not begin with all that an earlier one has, in its order."""
    found = record_lines.listed(now)
    return [
        name
        for name, lines in record_lines.listed(before).items()
        if found.get(name, [])[: len(lines)] != lines
    ]


def test_the_list_itself_only_grows():
    """Against the commits before, where this is a checkout that has them."""
    before = earlier_lists(ROOT, record_lines.LIST.relative_to(ROOT).as_posix())
    if not before:
        pytest.skip("no earlier list to compare with")
    now = record_lines.LIST.read_text(encoding="utf-8")
    assert [lost(now, text) for text in before] == [[]] * len(before)


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_a_line_that_a_commit_took_out_of_the_list_is_missed_after_it(tmp_path):
    assert earlier_lists(tmp_path, "lines.txt") == []
    me = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
    git(tmp_path, "init", "-q")
    for text in ("/a\n1\n2\n", "/a\n1\n2\n3\n", "/a\n1\n3\n"):
        (tmp_path / "lines.txt").write_text(text)
        git(tmp_path, "add", "lines.txt")
        git(tmp_path, *me, "commit", "-q", "-m", "lines")
    before = earlier_lists(tmp_path, "lines.txt")
    assert [lost("/a\n1\n3\n", text) for text in before] == [[], ["a"], ["a"]]


def test_a_line_that_is_gone_from_a_record_is_listed_as_deleted():
    deleted = set(KNOWN[record_lines.DELETED])
    gone = {
        name: sorted(set(lines) - set(FILES.get(name, [])) - deleted)
        for name, lines in KNOWN.items()
        if name != record_lines.DELETED
    }
    assert not {name: lines for name, lines in gone.items() if lines}, (
        "records were edited or deleted: run tools/record_lines.py --deleted, and say why"
    )
