"""No test allows computed numbers a constant: what they may be off follows from their precision."""

import ast
import math
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "tests").rglob("*.py"))
LEAST = 1e-6  # from here on a number is too large to be the rounding of float64 or float32
# A call or comparison that names a constant, and why nothing else can be said.
KEPT = {
    "bench/test_agreement.py: abs(control - 1) > 0.01": "the rule of records: a share of a time",
    "repo/test_train_record.py: abs(steps['flashsmith']['control'] - 1) <= 0.01": "the same rule",
    "bench/test_numbers.py: "
    "pytest.approx(first['ours_rms'] / first['peer_rms'], rel=0.01)": "shown with few digits",
    "bench/test_profile_groups.py: pytest.approx(2, rel=0.01)": "a ratio of a stand-in's times",
    "cli/test_run_verify.py: "
    "pytest.approx(row['error'] / row['allowed'], abs=0.001)": "shown with three digits",
    "emulator/test_floating_instructions.py: np.abs(found - truth).max() <= "
    "(ulps + 0.51) * np.spacing(np.abs(found)).max()": "what the ISA states, and a rounding",
    "examples/test_training_and_generation.py: "
    "abs(ours[0] - math.log(256)) < 1": "a loss of random weights: no numbers are compared",
    "kernels/test_sets.py: pytest.approx(exact.left, rel=0.05)": "an estimate from a sample",
    "report/test_charts.py: pytest.approx(785.4, abs=0.1)": "written with one digit here",
    "report/test_charts.py: "
    "pytest.approx([1 / 0.75 - 1.25] * 2, abs=0.0001)": "a record keeps four digits",
    "runtime/test_run.py: np.abs(expectation(problem, inputs)['o'].truth[:, :1] - means).max()"
    " < 0.0001": "two truths; their scores, up to 1e-4, differ from 0",
    "runtime/test_run.py: pytest.approx(1, abs=0.2)": "inputs for timing: their size is enough",
    "tuner/test_results_verb.py: pytest.approx(gaps, abs=1e-05)": "shown with five digits",
}

NEAR = {"allclose", "isclose", "assert_close", "assert_allclose", "approx"}
# Without a tolerance these take one from a table of types.
BY_TYPE = {"allclose", "isclose", "assert_close"}
BY_PLACES = {"assert_almost_equal", "assert_array_almost_equal", "assertAlmostEqual"}
TOLERANCES = {"atol", "rtol", "tol", "abs", "rel"}


def constant(node, names):
    """The number that an expression of constants stands for, or None."""
    if isinstance(node, ast.Constant):
        value = node.value
        return value if isinstance(value, int | float) and not isinstance(value, bool) else None
    if isinstance(node, ast.Name):
        return constant(names[node.id], {}) if node.id in names else None
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = constant(node.operand, names)
        return None if value is None else -value
    if isinstance(node, ast.BinOp):
        pair = constant(node.left, names), constant(node.right, names)
        operator = {ast.Pow: pow, ast.Mult: math.prod}.get(type(node.op))
        if None in pair or operator is None:
            return None
        return operator(*pair) if operator is pow else operator(pair)
    return None


def called(call):
    """The last name of what is called."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else ast.unparse(call.func)


def is_difference(node, names):
    """Whether a magnitude or a norm of a difference is looked at."""
    if isinstance(node, ast.Name) and node.id in names:
        return is_difference(names[node.id], {})
    for call in (n for n in ast.walk(node) if isinstance(n, ast.Call)):
        operators = [n.op for n in ast.walk(call) if isinstance(n, ast.BinOp)]
        if called(call) in ("abs", "norm", "fabs") and any(
            isinstance(o, ast.Sub) for o in operators
        ):
            return True
    inner = (n for n in ast.walk(node) if isinstance(n, ast.Name) and n.id in names)
    return any(is_difference(names[n.id], {}) for n in inner)


def states_a_constant(node, names):
    """Whether a limit is a number, or a share of something by a number."""
    whole = constant(node, names)
    if whole is not None:
        return abs(whole) > LEAST
    if isinstance(node, ast.BinOp):
        parts = (node.left, node.right)
        if isinstance(node.op, ast.Mult | ast.Add | ast.Sub | ast.Div):
            values = [constant(part, names) for part in parts]
            if any(value is not None and LEAST < abs(value) < 1 for value in values):
                return True
        return any(constant(p, names) is None and states_a_constant(p, names) for p in parts)
    return False


def calls_with_constants(call, names):
    name = called(call)
    given = {k.arg: k.value for k in call.keywords if k.arg in TOLERANCES}
    if name in BY_PLACES or (name in BY_TYPE and not given and len(call.args) < 3):
        return True
    positional = call.args[2:] if name in NEAR - {"approx"} else call.args[1:]
    limits = [*given.values(), *(positional if name in NEAR else [])]
    return any(states_a_constant(limit, names) for limit in limits)


def assigned(scope):
    """Names of a module or function and the expressions that they stand for."""
    found = {}
    for node in ast.walk(scope):
        if isinstance(node, ast.Assign):
            target, value = node.targets[0], node.value
            pairs = [(target, value)]
            if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
                pairs = list(zip(target.elts, value.elts, strict=False))
            found |= {t.id: v for t, v in pairs if isinstance(t, ast.Name)}
    return found


def constants(tree):
    """The calls and comparisons that allow a constant, as texts."""
    scopes = [(tree, assigned_outside(tree))]
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)]
    scopes += [(f, scopes[0][1] | assigned(f)) for f in functions]
    found = {}
    for scope, names in scopes:
        for node in ast.walk(scope):
            if isinstance(node, ast.Call) and calls_with_constants(node, names):
                found[id(node)] = ast.unparse(node)
            if isinstance(node, ast.Compare) and compares(node, names):
                found[id(node)] = ast.unparse(node)
    return sorted(found.values())


def assigned_outside(tree):
    """Names of a module, without those of its functions."""
    return assigned(ast.Module([n for n in tree.body if isinstance(n, ast.Assign)], []))


def compares(node, names):
    sides = [node.left, *node.comparators]
    if not all(isinstance(op, ast.Lt | ast.LtE | ast.Gt | ast.GtE) for op in node.ops):
        return False
    differences = [side for side in sides if is_difference(side, names)]
    return bool(differences) and any(
        states_a_constant(side, names) for side in sides if side not in differences
    )


def test_no_test_allows_a_constant():
    found = [
        f"{path.relative_to(ROOT / 'tests').as_posix()}: {text}"
        for path in FILES
        for text in constants(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert found == sorted(KEPT)


@pytest.mark.parametrize(
    "line",
    [
        "np.testing.assert_allclose(o, truth, atol=2e-3)",
        "torch.testing.assert_close(o, truth, rtol=0, atol=1e-3)",
        "assert np.allclose(o, truth, 0, 1e-2)",
        "torch.testing.assert_close(o, truth)",
        "assert o[0] == pytest.approx(truth[0], abs=1e-3)",
        "np.testing.assert_array_almost_equal(o, truth, 3)",
        "assert (o - truth).abs().max() < 2e-2",
        "assert 0.02 > np.abs(o - truth).max()",
        "assert (o - truth).norm() <= 6e-3 * truth.norm()",
        "assert np.linalg.norm(o - truth) < 2.0**-7 * np.linalg.norm(truth)",
        "assert abs(o - truth).max() <= 2 * near + 1e-3",
        "NEAR = 1e-3\nnp.testing.assert_allclose(o, truth, atol=NEAR)",
        "def test():\n    off = (o - truth).abs()\n    assert off.max() < 0.02",
    ],
)
def test_a_constant_is_seen(line):
    assert len(constants(ast.parse(line))) == 1


@pytest.mark.parametrize(
    "line",
    [
        "np.testing.assert_allclose(o, truth, atol=1e-12)",
        "torch.testing.assert_close(o, truth, rtol=0, atol=0)",
        "assert (o - truth).abs().max() <= 2 * (same - truth).abs().max()",
        "assert abs(o - truth).max() <= FACTOR * UNIT_ROUNDOFF[dtype] * abs(truth).max()",
        "assert ratio == pytest.approx(1.25)",
        "assert k.diff().max() <= 16",
        "assert rng.random(9).max() < 0.7",
    ],
)
def test_what_follows_from_a_precision_passes(line):
    assert constants(ast.parse(line)) == []
