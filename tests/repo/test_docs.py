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
from flashsmith.kernels.sets import named_sets
from flashsmith.kernels.width import MAX_D_HEAD, MAX_TRAINED_D_HEAD
from flashsmith.runtime.devices import has_cuda

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "README.zh-CN.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"(?:<!--\s*(?P<note>[^>]*?)\s*-->\n)?```(?P<kind>\w+)\n(?P<text>.*?)```", re.S)
READMES = ["README.md", "README.zh-CN.md"]
LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)#\s]+)")
RUN_SECONDS = 300  # a block that takes longer does not belong into a page
IN_ONE_SHELL = ["adding_a_variant.md"]  # each block builds on those before it


def _blocks():
    """What is run of all pages; a block that stands on two of them is run once."""
    seen = set()
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
                if found["text"] in seen:
                    continue
                seen.add(found["text"])
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


def test_a_cta_is_written_as_in_the_glossary():
    """In knobs, comments and pages; what the compiler prints of a header's checks is no prose."""
    package = ROOT / "src" / "flashsmith"
    found = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in [*package.rglob("*.py"), *package.rglob("*.cuh"), *PAGES]
        for line in path.read_text(encoding="utf-8").splitlines()
        if re.search(r"\bCTAs?\b", line) and "static_assert" not in line
    ]
    assert not found


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


@pytest.mark.parametrize("name", READMES)
def test_every_verb_of_the_command_line_is_in_the_readme(name):
    from flashsmith.cli.main import VERBS

    text = (ROOT / name).read_text(encoding="utf-8")
    assert not [verb for verb in VERBS if f"flashsmith {verb}" not in text]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("README.md", "d_head up to {} ({} without gradients)"),
        ("README.zh-CN.md", "d_head 最大 {}（不求梯度时 {}）"),
    ],
)
def test_a_readme_states_the_widths_and_the_sets_that_there_are(name, says):
    text = (ROOT / name).read_text(encoding="utf-8")
    assert says.format(MAX_TRAINED_D_HEAD, MAX_D_HEAD) in text
    assert not [key for key in named_sets() if f"`{key}`" not in text]


# Names that the documents use for files, types, fields and scripts.
DOCUMENTED = (
    *("kernel_configs.py", "DType", "FlashForwardKernelConfig", "short_form", "to_cpp_struct"),
    *("should_autotune_config", "get_autotuning_kernel_configs", "get_kernels_to_build"),
    *("get_kernel_progression_configs", "get_kernel_configs", "parse_kernel_name_into_config"),
    *("StaticForwardKernelConfig", "ForwardKernelTileShapes", "ForwardKernelArgs", "RmemConfig"),
    *("GSMemLdstConfigQO", "GSMemLdstConfigKV", "FlashForwardKernelConfig_CPP"),
    *("Q_mma_load_K_fragments", "K_mma_load_K_fragments", "V_mma_load_K_fragments"),
    *("flash_forward_kernel", "forward_kernels", "forward_kernel.cuh", "load_store.cuh"),
    *("flash_kernels.cuh", "flash_attention.cuh", "static_kernel_configuration.cuh"),
    *("run_kernels.py", "ncu_bench.py", "pt_bench.py", "benchmark_autotune.sh"),
    *("generate_kernel_instantiations.py", "previous_kernels/", "KERNELS", "test.py"),
)
SCRIPTS = {
    "benchmark/run_kernels.py": ("smoke", "--d_head", "300"),
    "benchmark/ncu_bench.py": ("--seq_lens=0", "--d_heads=128", "--runs=1", "--csv"),
    "benchmark/pt_bench.py": ("prog", "--seq_lens=4096", "--d_heads=96"),
    "build/generate_kernel_instantiations.py": ("nonsense", "-o", "nowhere"),
}


@pytest.mark.parametrize("name", DOCUMENTED)
def test_every_name_of_the_documents_is_on_the_map(name):
    lines = (ROOT / "docs" / "from_the_documents.md").read_text(encoding="utf-8").splitlines()
    originals = " ".join(line.split("|")[1] for line in lines if line.count("|") >= 3)
    assert name in originals


def test_the_types_that_the_map_names_are_in_the_headers_that_it_names():
    text = (ROOT / "docs" / "from_the_documents.md").read_text(encoding="utf-8")
    headers = ROOT / "src/flashsmith/cuda/include/flashsmith"
    for name, path in (
        ("StaticForwardKernelConfig", "sm80/static_config.cuh"),
        ("LoadGroups", "sm80/static_config.cuh"),
        ("QKGroups", "sm80/static_config.cuh"),
        ("VTile", "sm80/static_config.cuh"),
        ("SmemTile", "tile/smem_tile.cuh"),
        ("TileStream", "sm80/gmem_to_smem.cuh"),
        ("FragmentReader", "tile/fragment.cuh"),
        ("Accumulator", "tile/fragment.cuh"),
    ):
        assert f"`{name}`" in text
        assert re.search(rf"\b{name}\b", (headers / path).read_text(encoding="utf-8"))


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_of_the_original_system_calls_its_verb(script):
    """With options as the original spelt them; what it refuses shows that the verb was reached."""
    command = [sys.executable, str(ROOT / "tools" / script), *SCRIPTS[script]]
    environment = {name: value for name, value in os.environ.items() if name != "KERNELS"}
    environment["PYTHONPATH"] = str(ROOT / "src")
    ran = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert ran.returncode == 2
    assert ran.stderr.startswith("flashsmith: "), ran.stderr
    assert "Traceback" not in ran.stderr


def test_the_tuning_script_profiles_the_tuning_set_into_a_table(tmp_path):
    """Its lengths, sets and options are those of the original; a stand-in shows what it runs."""
    python = tmp_path / "python3"
    python.write_text('#!/bin/sh\necho "$KERNELS" "$@"\n', encoding="utf-8")
    python.chmod(0o755)
    script = ROOT / "tools/benchmark/benchmark_autotune.sh"
    environment = {"PATH": os.environ["PATH"], "PYTHON": str(python)}
    subprocess.run([str(script)], cwd=tmp_path, env=environment, check=True)
    table = (tmp_path / "profiles" / "autotune.csv").read_text(encoding="utf-8")
    assert table.split()[0] == "tune"
    assert "--seq_lens=1024,2048,4096,8192,16384 --d_heads=128 --runs=1 --csv" in table


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
