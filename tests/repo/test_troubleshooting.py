"""The page of troubles is true: its commands print the messages that stand below them."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from flashsmith.runtime.devices import has_cuda

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
PAIR = re.compile(r"```(console|python)\n(.*?)```\n\n```text\n(.*?)\n```", re.S)
TEXT = re.compile(r"```text\n(.*?)\n```", re.S)


def squeezed(text):
    """A text without the line breaks and spaces of a table."""
    return re.sub(r"[\s│]+", " ", text)


def pattern_of(message):
    """What matches a message of the page; `…` stands for anything."""
    parts = (re.escape(squeezed(part).strip()) for part in message.split("…"))
    return re.compile(".*?".join(parts))


def run(kind, text, folder):
    here = str(Path(sys.executable).parent)
    environment = os.environ | {
        "PATH": f"{here}{os.pathsep}{os.environ['PATH']}",
        "OUT": str(folder),
        "FLASHSMITH_CACHE_DIR": str(folder / "cache"),
        "COLUMNS": "400",
    }
    command = [sys.executable, "-c", text]
    if kind == "console":
        lines = (line[2:] for line in text.splitlines() if line.startswith("$ "))
        command = ["bash", "-c", "\n".join(lines)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    return squeezed(done.stdout + done.stderr)


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    PAIR.findall(PAGE),
    ids=[text.strip().splitlines()[-1][:60] for _, text, _ in PAIR.findall(PAGE)],
)
def test_a_command_of_the_page_prints_its_message(kind, text, message, tmp_path):
    if "--device cuda" in text and has_cuda() and "CUDA_VISIBLE_DEVICES=" not in text:
        pytest.skip("there is a GPU here")
    printed = run(kind, text, tmp_path)
    assert pattern_of(message).search(printed), printed[-2000:]


def test_messages_without_a_command_stand_in_the_sources():
    """Those that no command can bring about on a machine where all is well."""
    alone = set(TEXT.findall(PAGE)) - {message for _, _, message in PAIR.findall(PAGE)}
    assert len(alone) == 2
    sources = " ".join(
        path.read_text(encoding="utf-8")
        for path in (ROOT / "src" / "flashsmith" / "compile").rglob("*.py")
    )
    joined = re.sub(r'"\s*\+ settings\.NVRTC \+ "', "FLASHSMITH_NVRTC", sources)
    joined = re.sub(r'"\s*\n\s*f?"', "", joined)
    for message in alone:
        assert message in joined
