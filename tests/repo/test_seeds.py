"""No test draws numbers without a seed: what fails once fails again."""

import ast
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "tests").rglob("*.py"))
# What draws from a state that torch keeps for the whole process.
TORCH = {
    *("rand", "randn", "randint", "randperm", "rand_like", "randn_like", "randint_like"),
    *("normal", "bernoulli", "multinomial", "poisson"),
}
IN_PLACE = {"normal_", "uniform_", "random_", "bernoulli_", "exponential_", "cauchy_"}
PYTHON = {"random", "randint", "choice", "choices", "shuffle", "sample", "uniform", "gauss"}


def dotted(node):
    """`np.random.rand` for the expression that says so, or an empty text."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join(reversed([*parts, node.id])) if isinstance(node, ast.Name) else ""


def is_seedless(call, has_torch_seed):
    """Whether a call draws, or makes what draws, and nothing says with which seed."""
    name = dotted(call.func)
    method = call.func.attr if isinstance(call.func, ast.Attribute) else name
    is_given = bool(call.args or call.keywords)
    if method in ("default_rng", "RandomState", "SeedSequence"):
        return not is_given
    if name.startswith(("np.random.", "numpy.random.")):
        return method not in ("Generator", "PCG64", "Philox") or not is_given
    if name.startswith("random."):
        return method in PYTHON or (method in ("Random", "SystemRandom") and not is_given)
    if (name.startswith("torch.") and method in TORCH) or method in IN_PLACE:
        return not has_torch_seed and not any(k.arg == "generator" for k in call.keywords)
    return False


def seedless(tree):
    """The lines that draw without a seed; code in texts is looked at too."""
    found = []
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)]
    seeded = {
        id(inside)
        for function in functions
        if any(dotted(n.func) == "torch.manual_seed" for n in calls(function))
        for inside in ast.walk(function)
    }
    found += [call.lineno for call in calls(tree) if is_seedless(call, id(call) in seeded)]
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
            is_drawn = any(f"torch.{name}(" in text for name in TORCH)
            if is_drawn and "\n" in text and "torch.manual_seed(" not in text:
                found.append(node.lineno)
    return found


def calls(tree):
    return [node for node in ast.walk(tree) if isinstance(node, ast.Call)]


def test_no_test_draws_without_a_seed():
    drawn = {
        f"{path.relative_to(ROOT).as_posix()}:{line}"
        for path in FILES
        for line in seedless(ast.parse(path.read_text(encoding="utf-8")))
    }
    assert not drawn


@pytest.mark.parametrize(
    "line",
    [
        "np.random.rand(3)",
        "np.random.default_rng()",
        "default_rng()",
        "np.random.seed(0)",
        "torch.randn(3, dtype=torch.float16)",
        "torch.zeros(3).normal_()",
        "random.random()",
        "random.Random()",
        "CODE = 'import torch\\nq = torch.rand(3)'",
    ],
)
def test_what_has_no_seed_is_seen(line):
    assert seedless(ast.parse(line)) == [1]


@pytest.mark.parametrize(
    "line",
    [
        "np.random.default_rng(0).normal(size=3)",
        "torch.randn(3, generator=torch.Generator().manual_seed(0))",
        "def f():\n    torch.manual_seed(0)\n    return torch.randn(3)",
        "random.Random(7).random()",
        "jax.random.normal(key, (3,))",
    ],
)
def test_what_has_a_seed_passes(line):
    assert seedless(ast.parse(line)) == []


def test_hypothesis_draws_the_same_examples_every_time(pytestconfig):
    assert settings().derandomize is (pytestconfig.getoption("reseed") is None)


def test_another_seed_is_given_to_every_draw(pytestconfig):
    """`--reseed N` moves each seed of NumPy and torch, so that tests can be run under many."""
    torch = pytest.importorskip("torch")
    seed = pytestconfig.getoption("reseed")
    plain = np.random.Generator(np.random.PCG64(5)).random()
    torch.manual_seed(5)
    moved = np.random.default_rng(5).random() != plain, torch.initial_seed() != 5
    assert moved == ((False, False) if seed is None else (True, True))
