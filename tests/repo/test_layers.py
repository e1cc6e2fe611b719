"""The tree is the flow: imports and includes only point down, and few places name a kernel."""

import ast
import re
from pathlib import Path

import pytest

from flashsmith.compile.header_closure import INCLUDE_ROOT
from flashsmith.kernels import CATALOGUE

PACKAGE = Path(__file__).parents[2] / "src" / "flashsmith"

# Top to bottom; packages on one line do not know each other.
LAYERS = (
    ("cli",),
    ("report",),
    ("bench",),
    ("api", "torch_op", "jax_op", "integrations"),
    ("tuner",),
    ("measure",),
    ("check",),
    ("runtime",),
    ("compile", "emulator"),
    ("kernels",),
    ("arch", "problem"),
    ("base",),
)
DEPTH = {name: depth for depth, layer in enumerate(LAYERS) for name in layer}
# torch_op, jax_op and integrations are the public API for a framework: one package with api.
MAY_IMPORT_ITS_NEIGHBOUR = {
    *(("api", "torch_op"), ("torch_op", "api"), ("integrations", "api")),
    *(("api", "jax_op"), ("jax_op", "api")),
}
MODULES = sorted(PACKAGE.rglob("*.py"))

THIRD_PARTY = {"numpy", "typer", "rich"}  # what may be imported at the top of a module


def imports_of(path):
    """Every `flashsmith…` module a file imports, wherever the import stands."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield f"{node.module}"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def package_of(path):
    parts = path.relative_to(PACKAGE).parts
    return parts[0] if len(parts) > 1 else ""


def test_every_package_has_a_layer():
    packages = {package_of(path) for path in MODULES} - {"", "cuda"}
    assert packages <= set(DEPTH)


@pytest.mark.parametrize("package", sorted(DEPTH))
def test_imports_only_point_down(package):
    wrong = []
    for path in (PACKAGE / package).rglob("*.py"):
        for module in imports_of(path):
            parts = module.split(".")
            if parts[0] != "flashsmith" or len(parts) < 2 or parts[1] not in DEPTH:
                continue
            other = parts[1]
            allowed = other == package or DEPTH[other] > DEPTH[package]
            if not allowed and (package, other) not in MAY_IMPORT_ITS_NEIGHBOUR:
                wrong.append(f"{path.relative_to(PACKAGE)} imports {module}")
    assert not wrong


def test_few_places_name_a_kernel_or_an_architectures_family():
    """The original system's public names stay; nobody else knows which kernels there are."""
    classes = {kernel.__name__ for kernel in CATALOGUE}
    folders = {kernel.NAME for kernel in CATALOGUE}
    words = re.compile("|".join(sorted(classes | folders | {"[Hh]opper", "[Aa]mpere"})))
    allowed = ("kernels/", "cuda/", "arch/", "emulator/", "__init__.py", "config.py")
    wrong = []
    for path in MODULES:
        place = path.relative_to(PACKAGE).as_posix()
        if not place.startswith(allowed):
            found = set(words.findall(path.read_text(encoding="utf-8")))
            wrong += [f"{place}: {name}" for name in sorted(found)]
    assert not wrong


# Headers, bottom to top; folders on one line do not know each other.
HEADERS = (("base",), ("ptx",), ("tile",), ("attention",), ("decode",), ("sm80", "sm90"))
HEIGHT = {name: height for height, layer in enumerate(HEADERS) for name in layer}


def test_includes_only_point_down():
    root = INCLUDE_ROOT / "flashsmith"
    wrong = []
    for path in sorted(root.rglob("*.cuh")):
        mine = path.relative_to(root).parts[0]
        others = re.findall(r'#include "flashsmith/(\w+)/', path.read_text(encoding="utf-8"))
        wrong += [
            f"{path.relative_to(root)} includes {other}/"
            for other in others
            if other != mine and HEIGHT[other] >= HEIGHT[mine]
        ]
    assert not wrong


def test_no_folder_holds_more_than_twenty_modules():
    folders = {path.parent for path in MODULES}
    counts = {folder: len(list(folder.glob("*.py"))) for folder in folders}
    assert not {str(f.relative_to(PACKAGE)): n for f, n in counts.items() if n > 20}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_imports_at_its_top_only_what_is_always_installed(path):
    if package_of(path) in ("torch_op", "integrations"):
        allowed = {*THIRD_PARTY, "torch", "transformers"}
    elif package_of(path) == "jax_op":
        allowed = {*THIRD_PARTY, "jax"}
    else:
        allowed = THIRD_PARTY
    import sys

    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [str(node.module)]
        for name in names:
            top = name.partition(".")[0]
            known = top in allowed or top in sys.stdlib_module_names or top == "flashsmith"
            assert known, f"{name} is imported when the module is"
