"""How far a thing is spread: what is declared once is not spelt out again wherever it passes."""

import ast
import re
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "src" / "flashsmith"
MODULES = sorted(PACKAGE.rglob("*.py"))
HEADERS = sorted((PACKAGE / "cuda").rglob("*.cuh"))
SCALE = {"scale", "softmax_scale", "scale_log2"}
KERNEL = re.compile(r"sm\d+_(forward|backward|decode)|Sm\d+|hopper|FlashForwardKernel|wgmma", re.I)
# Where kernels are named: themselves, the GPUs they are for, and the instructions of the emulator.
NAMES_KERNELS = ("kernels/", "cuda/", "arch/", "emulator/")
ORIGINAL_NAMES = {"__init__.py", "config.py"}  # the public names of the original system


def name_of(path):
    return path.relative_to(PACKAGE).as_posix()


def declared(tree):
    """Names of parameters, of a class's fields and of its properties."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.Lambda):
            arguments = node.args
            yield from (a.arg for a in (*arguments.posonlyargs, *arguments.args))
            yield from (a.arg for a in arguments.kwonlyargs)
        if isinstance(node, ast.ClassDef):
            for item in node.body:
                if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                    yield item.target.id
                if isinstance(item, ast.FunctionDef):
                    yield item.name


def code_of(path):
    return re.sub(r"//[^\n]*", "", path.read_text(encoding="utf-8"))


def test_the_softmax_scale_is_in_few_places():
    modules = [
        name_of(path)
        for path in MODULES
        if SCALE & set(declared(ast.parse(path.read_text(encoding="utf-8"))))
    ]
    assert len(modules) <= 8, modules
    headers = [
        name_of(path) for path in HEADERS if re.search(r"scale_log2|\bscale\b", code_of(path))
    ]
    assert len(headers) <= 2, headers


# A row's edges: a mask's, a call's, and as a kernel's arguments have them.
EDGE = re.compile(r"\.?(?:\w*diagonal|window_\w+)|\.(?:left|right)")
HEADER_RECKONS = re.compile(r"[-+<>]=?\s*[\w.()]*\w*diagonal\b|\w*diagonal\s*[-+<>]")


def reckons_with_edges(tree):
    """Whether some sum, product or order of a module has a mask's edge in it."""
    for node in ast.walk(tree):
        is_order = isinstance(node, ast.Compare) and isinstance(
            node.ops[0], ast.Lt | ast.LtE | ast.Gt | ast.GtE
        )
        if is_order or isinstance(node, ast.BinOp | ast.AugAssign):
            names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
            names |= {f".{n.attr}" for n in ast.walk(node) if isinstance(n, ast.Attribute)}
            if any(map(EDGE.fullmatch, names)):
                return True
    return False


def test_mask_arithmetic_stands_in_one_module_and_one_header():
    modules = [
        name_of(path)
        for path in MODULES
        if reckons_with_edges(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert modules == ["problem/mask.py"]
    headers = [name_of(path) for path in HEADERS if HEADER_RECKONS.search(code_of(path))]
    assert headers == ["cuda/include/flashsmith/attention/mask.cuh"]


@pytest.mark.parametrize(
    "code",
    [
        "keys = (mask.left or 0) + problem.k_len",
        "is_narrow = problem.window_left < 128",
        "end -= mask.right",
        "edge = row + left_diagonal",
    ],
)
def test_mask_arithmetic_is_seen_by_any_of_its_names(code):
    assert reckons_with_edges(ast.parse(code))
    assert not reckons_with_edges(ast.parse("left + 1; x = mask.left; step.left_over + 1"))


@pytest.mark.parametrize("code", ["row + args.left_diagonal", "of.left_diagonal - 1"])
def test_so_it_is_in_headers(code):
    assert HEADER_RECKONS.search(code)
    assert not HEADER_RECKONS.search("{args.q_len, args.diagonal, args.left_diagonal}")


def texts_of(tree):
    """Every name, and every text that is no documentation."""
    documents = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.alias):
            yield node.name
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""
        elif isinstance(node, ast.Constant) and id(node) not in documents:
            yield str(node.value)


def test_no_module_names_a_kernel_but_those_that_are_about_one():
    named = {}
    for path in MODULES:
        name = name_of(path)
        if name.startswith(NAMES_KERNELS) or name in ORIGINAL_NAMES:
            continue
        found = [t for t in texts_of(ast.parse(path.read_text("utf-8"))) if KERNEL.search(t)]
        if found:
            named[name] = found
    assert not named
