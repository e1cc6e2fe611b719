"""Floating-point arithmetic: one rounding, NaN rules, subnormals, 16-bit formats."""

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lanes import run_lanes

FLOATS = st.lists(st.floats(width=32, allow_nan=False), min_size=32, max_size=32)
NAN, INF = float("nan"), float("inf")
SPECIAL = np.array([0.0, -0.0, 1.0, -1.5, INF, -INF, NAN, 1e-40] * 8, np.float32)
OTHERS = np.repeat(SPECIAL[:8], 8)


def floats(values):
    return np.array(values, np.float32)


def same(found, expected):
    np.testing.assert_array_equal(np.asarray(found), np.asarray(expected))


@settings(max_examples=30, deadline=None)
@given(FLOATS, FLOATS, FLOATS)
def test_fma_rounds_once(x, y, z):
    a, b, c = floats(x), floats(y), floats(z)
    found = run_lanes("fma.rn.f32 %d, %a0, %a1, %a2;", a, b, c, out=np.float32)
    for p, q, r, got in zip(a, b, c, found, strict=True):
        if not all(np.isfinite(v) for v in (p, q, r)) or not np.isfinite(got):
            continue
        exact = Fraction(float(p)) * Fraction(float(q)) + Fraction(float(r))
        error = abs(Fraction(float(got)) - exact)
        with np.errstate(over="ignore"):
            neighbours = [np.nextafter(got, np.float32(end)) for end in (INF, -INF)]
        for neighbour in neighbours:
            if np.isfinite(neighbour):
                assert error <= abs(Fraction(float(neighbour)) - exact)


def test_fma_is_right_where_rounding_twice_is_not():
    # 1 + 2^-24 + 2^-60: half-way in f32 once the last term is lost in f64.
    a, b = floats([1 + 2**-12] * 32), floats([1 - 2**-12] * 32)
    product = Fraction(float(a[0])) * Fraction(float(b[0]))
    c = floats([2**-24 + 2**-46] * 32)
    found = run_lanes("fma.rn.f32 %d, %a0, %a1, %a2;", a, b, c, out=np.float32)[0]
    exact = product + Fraction(float(c[0]))
    assert abs(Fraction(float(found)) - exact) <= Fraction(1, 2**24)
    tie_a, tie_b = floats([1 + 2**-23] * 32), floats([1 + 2**-1] * 32)
    tiny = floats([-(2**-70)] * 32)
    found = run_lanes("fma.rn.f32 %d, %a0, %a1, %a2;", tie_a, tie_b, tiny, out=np.float32)[0]
    assert found == np.float32(1.5 + 2**-23)  # the tie is broken downwards by the tiny addend


@settings(max_examples=20, deadline=None)
@given(FLOATS, FLOATS, FLOATS, st.sampled_from(["rz", "rm", "rp"]))
def test_directed_rounding_never_passes_the_exact_value(x, y, z, mode):
    a, b, c = floats(x), floats(y), floats(z)
    found = run_lanes(f"fma.{mode}.f32 %d, %a0, %a1, %a2;", a, b, c, out=np.float32)
    for p, q, r, got in zip(a, b, c, found, strict=True):
        if not all(np.isfinite(v) for v in (p, q, r, got)):
            continue
        exact = Fraction(float(p)) * Fraction(float(q)) + Fraction(float(r))
        down = mode == "rm" or (mode == "rz" and exact > 0)
        value = Fraction(float(got))
        assert value <= exact if down else value >= exact
        with np.errstate(over="ignore"):
            further = float(np.nextafter(got, np.float32(INF if down else -INF)))
        if np.isfinite(further):
            assert (
                Fraction(further) > exact if down else Fraction(further) < exact or value == exact
            )


def test_directed_sums_see_what_float64_loses():
    a, tiny = floats([1.0, -1.0] * 16), floats([1e-30, 1e-30] * 16)
    up = run_lanes("add.rp.f32 %d, %a0, %a1;", a, tiny, out=np.float32)
    assert up[:2].tolist() == [float(np.nextafter(np.float32(1), np.float32(2))), -1 + 2**-24]
    assert run_lanes("add.rm.f32 %d, %a0, %a1;", a, tiny, out=np.float32)[:2].tolist() == [1, -1]
    assert run_lanes("sub.rz.f32 %d, %a0, %a1;", a, tiny, out=np.float32)[0] == 1 - 2**-24


@pytest.mark.parametrize("operation", ["add", "sub", "mul", "div"])
def test_arithmetic_follows_ieee_on_special_values(operation):
    rounding = ".rn" if operation == "div" else ""
    body = f"{operation}{rounding}.f32 %d, %a0, %a1;"
    found = run_lanes(body, SPECIAL, OTHERS, out=np.float32)
    with np.errstate(all="ignore"):
        expected = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide}[
            operation
        ](SPECIAL, OTHERS)
    same(found, expected)


def test_min_and_max_ignore_a_nan_unless_asked():
    assert (
        run_lanes("max.f32 %d, %a0, %a1;", floats([NAN] * 32), floats([2] * 32), out=np.float32)[0]
        == 2
    )
    assert (
        run_lanes("min.f32 %d, %a0, %a1;", floats([3] * 32), floats([NAN] * 32), out=np.float32)[0]
        == 3
    )
    found = run_lanes("max.NaN.f32 %d, %a0, %a1;", floats([NAN] * 32), floats([2] * 32))
    assert found[0] == 0x7FFFFFFF


def test_minus_zero_is_less_than_zero():
    zeros, minus = floats([0.0] * 32), floats([-0.0] * 32)
    for first, second in ((zeros, minus), (minus, zeros)):
        assert run_lanes("max.f32 %d, %a0, %a1;", first, second)[0] == 0
        assert run_lanes("min.f32 %d, %a0, %a1;", first, second)[0] == 0x80000000


def test_xorsign_takes_the_larger_magnitude_and_both_signs():
    found = run_lanes(
        "max.xorsign.abs.f32 %d, %a0, %a1;", floats([-3, 2] * 16), floats([2, -5] * 16),
        out=np.float32,
    )  # fmt: skip
    assert found[:2].tolist() == [-3.0, -5.0]


def test_ftz_flushes_subnormals_before_and_after():
    small = floats([1e-40, -1e-40, 2e-38, 1.0] * 8)
    found = run_lanes("mul.ftz.f32 %d, %a0, %a1;", small, floats([0.5] * 32))
    assert found[:4].view(np.float32).tolist() == [0.0, 0.0, 0.0, 0.5]
    assert found[1] == 0x80000000
    assert run_lanes("add.f32 %d, %a0, %a0;", small, out=np.float32)[0] == floats([1e-40])[0] * 2


def test_sat_clamps_to_the_unit_interval():
    found = run_lanes("add.sat.f32 %d, %a0, %a0;", floats([-1, 0.25, 3, NAN] * 8), out=np.float32)
    assert found[:4].tolist() == [0.0, 0.5, 1.0, 0.0]


@pytest.mark.parametrize(
    ("body", "function", "ulps"),
    [
        ("ex2.approx.ftz.f32", np.exp2, 2),
        ("lg2.approx.f32", np.log2, 1),
        ("rcp.approx.ftz.f32", np.reciprocal, 1),
        ("rcp.rn.f32", np.reciprocal, 0),
        ("sqrt.rn.f32", np.sqrt, 0),
        ("rsqrt.approx.f32", lambda x: 1 / np.sqrt(x), 1),
        ("sin.approx.f32", np.sin, 1),
        ("cos.approx.f32", np.cos, 1),
        ("tanh.approx.f32", np.tanh, 1),
    ],
)
def test_special_functions_are_within_the_bound_of_the_isa(body, function, ulps):
    x = np.random.default_rng(0).uniform(0.1, 9, 256).astype(np.float32)
    found = run_lanes(f"{body} %d, %a0;", x, out=np.float32)
    truth = function(x.astype(np.float64))
    assert np.abs(found - truth).max() <= (ulps + 0.51) * np.spacing(np.abs(found)).max()


def test_ex2_of_infinities_and_large_arguments():
    found = run_lanes(
        "ex2.approx.ftz.f32 %d, %a0;", floats([-INF, INF, -127, -126, 128, 0, NAN, -150] * 4),
        out=np.float32,
    )  # fmt: skip
    same(found[:8], floats([0, INF, 0, 2**-126, INF, 1, NAN, 0]))


@pytest.mark.parametrize(
    ("kind", "dtype"), [("f16x2", np.float16), ("bf16x2", ml_dtypes.bfloat16)], ids=["fp16", "bf16"]
)
@pytest.mark.parametrize("operation", ["add", "mul", "max", "fma"])
def test_packed_halves_round_once(kind, dtype, operation):
    random = np.random.default_rng(1)
    numbers = [random.standard_normal(128).astype(dtype) for _ in range(3)]
    a, b, c = (n.view(np.uint32) for n in numbers)
    rounding = ".rn" if operation == "fma" else ""
    third = ", %a2" if operation == "fma" else ""
    found = run_lanes(f"{operation}{rounding}.{kind} %d, %a0, %a1{third};", a, b, c).view(dtype)
    x, y, z = (n.astype(np.float64) for n in numbers)
    exact = {"add": x + y, "mul": x * y, "max": np.maximum(x, y), "fma": x * y + z}[operation]
    same(found.astype(np.float32), exact.astype(np.float32).astype(dtype).astype(np.float32))


def test_f64_arithmetic_is_done_in_f64():
    a = np.array([1.0, 1e200, 3.0, -2.5] * 8)
    b = np.array([2**-52, 1e100, 7.0, 0.1] * 8)
    same(run_lanes("add.f64 %d, %a0, %a1;", a, b, out=np.float64), a + b)
    same(run_lanes("mul.f64 %d, %a0, %a1;", a, b, out=np.float64), a * b)
    same(run_lanes("div.rn.f64 %d, %a0, %a1;", a, b, out=np.float64), a / b)


def test_signs_are_changed_without_arithmetic():
    nan = np.array([0x7FC12345] * 32, np.uint32)
    assert run_lanes("neg.f32 %d, %a0;", nan)[0] == 0xFFC12345
    assert run_lanes("abs.f32 %d, %a0;", nan | 0x80000000)[0] == 0x7FC12345
    assert run_lanes("copysign.f32 %d, %a0, %a1;", floats([-1] * 32), floats([3] * 32),
                     out=np.float32)[0] == -3  # fmt: skip


@pytest.mark.parametrize(
    ("test", "expected"),
    [("finite", [1, 0, 0, 1]), ("infinite", [0, 1, 0, 0]), ("notanumber", [0, 0, 1, 0]),
     ("subnormal", [0, 0, 0, 1]), ("normal", [1, 0, 0, 0])],
)  # fmt: skip
def test_testp_tells_the_class_of_a_number(test, expected):
    x = floats([1.0, INF, NAN, 1e-40] * 8)
    found = run_lanes(f"testp.{test}.f32 %p1, %a0; selp.b32 %d, 1, 0, %p1;", x)
    assert found[:4].tolist() == expected
