"""Keeps a hash of every line of every committed record, so that none is edited unnoticed.

    python tools/record_lines.py             # after new lines were appended: adds their hashes
    python tools/record_lines.py --deleted   # after lines were deleted; the commit says why

Evidence is appended to or deleted, never edited: a line that changed looks like one deleted and one
added, which is refused without --deleted. Hashes of deleted lines stay in the list.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
LIST = ROOT / "benchmarks" / "results" / "lines.txt"
FOLDERS = ("benchmarks/results", "src/flashsmith")
LETTERS = 12
DELETED = "deleted"  # in the place of a file: lines that were deleted, as commits say


def record_files() -> dict[str, list[str]]:
    """The hashes of each committed record's lines, by the file's path from the root."""
    files = [p for folder in FOLDERS for p in sorted((ROOT / folder).rglob("*.jsonl"))]
    return {
        path.relative_to(ROOT).as_posix(): [
            hashlib.sha256(line).hexdigest()[:LETTERS] for line in path.read_bytes().splitlines()
        ]
        for path in files
    }


def listed(text: str) -> dict[str, list[str]]:
    """The list: a file's path on a line, then the hashes of its lines."""
    found: dict[str, list[str]] = {}
    name = ""
    for line in text.splitlines():
        if line.startswith("/"):
            name = line[1:]
            found.setdefault(name, [])
        else:
            found[name].append(line)
    return found


def main() -> int:
    """Adds what is new; refuses where lines are gone, unless told that they were deleted."""
    known = listed(LIST.read_text(encoding="utf-8")) if LIST.exists() else {}
    there = record_files()
    deleted = known.setdefault(DELETED, [])
    gone = sorted(
        {
            line
            for name, lines in known.items()
            if name != DELETED
            for line in set(lines) - set(there.get(name, [])) - set(deleted)
        }
    )
    added = 0
    for name, lines in there.items():
        new = [line for line in dict.fromkeys(lines) if line not in set(known.get(name, []))]
        if new and gone and "--deleted" not in sys.argv:
            how_many = f"{len(new)} new lines while {len(gone)} lines"
            print(f"{name}: {how_many} of records are gone: edited?")
            return 1
        known.setdefault(name, []).extend(new)
        added += len(new)
    if "--deleted" in sys.argv:
        deleted.extend(gone)
    text = "".join(f"/{name}\n" + "".join(f"{h}\n" for h in known[name]) for name in sorted(known))
    LIST.write_text(text, encoding="utf-8")
    print(f"{added} lines added to {LIST.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
