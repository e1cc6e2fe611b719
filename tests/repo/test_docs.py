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

from flashsmith.kernels.page import configuration_page
from flashsmith.runtime.devices import has_cuda

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"(?:<!--\s*(?P<note>[^>]*?)\s*-->\n)?```(?P<kind>\w+)\n(?P<text>.*?)```", re.S)
LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)#\s]+)")
RUN_SECONDS = 300  # a block that takes longer does not belong into a page


def _blocks():
    for page in PAGES:
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
