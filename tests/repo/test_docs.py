"""The docs are true: their commands run, their links lead somewhere, generated pages are current.

A fenced block of `bash`, `console` or `python` is run from the repository's root. A comment on the
line before it can say otherwise: `<!-- needs a GPU -->`, or `<!-- not run: reason -->`.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from flashsmith.kernels import parse_config
from flashsmith.kernels.page import configuration_page
from flashsmith.runtime.devices import has_cuda

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"(?:<!--\s*(?P<note>[^>]*?)\s*-->\n)?```(?P<kind>\w+)\n(?P<text>.*?)```", re.S)
READMES = ["README.md"]
LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)#\s]+)")
RUN_SECONDS = 300  # a block that takes longer does not belong into a page
IN_ONE_SHELL = ["adding_a_variant.md"]  # each block builds on those before it


def _blocks():
    for page in PAGES:
        if page.name in IN_ONE_SHELL:
            continue
        text = page.read_text(encoding="utf-8")
        for found in BLOCK.finditer(text):
            if found["kind"] in ("bash", "console", "python"):
                line = text.count("\n", 0, found.start("text"))
                note = found["note"] or ""
                marks = []
                if note.startswith("needs a GPU"):
                    no_gpu = pytest.mark.skipif(not has_cuda(), reason="needs a GPU")
                    marks = [pytest.mark.gpu, no_gpu]
                elif note.startswith("not run:"):
                    continue
                name = f"{page.relative_to(ROOT)}:{line}"
                yield pytest.param(found["kind"], found["text"], id=name, marks=marks)


@pytest.mark.parametrize("name", IN_ONE_SHELL)
def test_a_page_that_is_followed_from_top_to_bottom_runs_in_one_shell(name, tmp_path):
    text = (ROOT / "docs" / name).read_text(encoding="utf-8")
    blocks = [b for b in BLOCK.finditer(text) if b["kind"] == "bash" and not b["note"]]
    assert len(blocks) > 5
    test_what_a_page_shows_runs("bash", "\n".join(b["text"] for b in blocks), tmp_path)


def _commands(text):
    """The lines a reader types of a console block."""
    return "\n".join(line[2:] for line in text.splitlines() if line.startswith("$ "))


@pytest.mark.parametrize(("kind", "text"), list(_blocks()))
def test_what_a_page_shows_runs(kind, text, tmp_path):
    here = str(Path(sys.executable).parent)
    environment = os.environ | {"PATH": f"{here}{os.pathsep}{os.environ['PATH']}"}
    environment.pop("KERNELS", None)
    environment["OUT"] = str(tmp_path)
    if kind == "python":
        command = [sys.executable, "-c", text]
    else:
        script = _commands(text) if kind == "console" else text
        command = ["bash", "-euo", "pipefail", "-c", script]
    ran = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=RUN_SECONDS
    )
    assert ran.returncode == 0, f"{ran.stdout[-2000:]}\n{ran.stderr[-2000:]}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_of_a_page_leads_somewhere(page):
    targets = LINK.findall(page.read_text(encoding="utf-8"))
    assert not [target for target in targets if not (page.parent / target).exists()]


def test_the_page_of_configurations_is_the_one_the_knobs_write():
    written = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    assert written == configuration_page() + "\n", (
        "write it again: flashsmith configs --page > docs/configuration.md"
    )


SCREEN = 40  # lines that a reader of the README sees without scrolling, or nearly


@pytest.mark.parametrize("name", READMES)
def test_the_first_screen_of_a_readme_holds_ten_lines_that_call_attention(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    block = next(b for b in BLOCK.finditer(text) if b["kind"] == "python")
    assert text.count("\n", 0, block.start("text")) <= SCREEN
    assert len([line for line in block["text"].splitlines() if line.strip()]) <= 10


def test_the_ten_lines_print_the_choice_in_two():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    code = next(b["text"] for b in BLOCK.finditer(text) if b["kind"] == "python")
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    shape, config, reason, *sets = ran.stdout.splitlines()
    assert shape == "(1, 200, 3, 64)"
    assert parse_config(config)
    assert 10 < len(reason) < 200
    assert all(line.startswith("(") for line in sets)


def test_every_verb_of_the_command_line_is_in_the_readme():
    from flashsmith.cli.main import VERBS

    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert not [verb for verb in VERBS if f"flashsmith {verb}" not in text]


def test_every_file_that_the_map_from_the_documents_names_is_there():
    page = ROOT / "docs" / "from_the_documents.md"
    package = ROOT / "src" / "flashsmith"
    missing = []
    for line in page.read_text(encoding="utf-8").splitlines():
        ours = line.split("|")[2] if line.count("|") == 3 else ""
        for name in re.findall(r"`([\w./]+/[\w./]*)`", ours):
            places = (ROOT / name, package / name, package / "cuda/include/flashsmith" / name)
            if not any(place.exists() for place in places):
                missing.append(name)
    assert not missing
