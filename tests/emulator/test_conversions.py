"""cvt, comparisons, selections and moves."""

import ml_dtypes
import numpy as np
import pytest
from lanes import run_lanes

NAN, INF = float("nan"), float("inf")


def floats(values):
    return np.array((list(values) * 32)[: 32 * max(1, len(values) // 32)], np.float32)


@pytest.mark.parametrize(
    ("kind", "dtype"), [("f16x2", np.float16), ("bf16x2", ml_dtypes.bfloat16)], ids=["fp16", "bf16"]
)
def test_packing_rounds_to_nearest_even_with_the_first_operand_on_top(kind, dtype):
    random = np.random.default_rng(3)
    high = (random.standard_normal(512) * 10.0 ** random.integers(-9, 9, 512)).astype(np.float32)
    low = high[::-1].copy()
    high[:4] = [NAN, INF, -0.0, 1e-41]
    found = run_lanes(f"cvt.rn.{kind}.f32 %d, %a0, %a1;", high, low)
    with np.errstate(over="ignore"):
        top, bottom = (x.astype(dtype).view(np.uint16) for x in (high, low))
    top[0] = 0x7FFF
    np.testing.assert_array_equal(found >> 16, top)
    np.testing.assert_array_equal(found & 0xFFFF, bottom)


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_single_halves_go_there_and_back(kind):
    dtype = np.float16 if kind == "f16" else ml_dtypes.bfloat16
    x = np.random.default_rng(4).standard_normal(64).astype(np.float32)
    body = f"cvt.rn.{kind}.f32 %h1, %a0; cvt.f32.{kind} %d, %h1;"
    np.testing.assert_array_equal(run_lanes(body, x, out=np.float32), x.astype(dtype).astype("f4"))


@pytest.mark.parametrize(
    ("rounding", "expected"),
    [
        ("rni", [2, -2, 2, 0]),
        ("rzi", [2, -2, 1, 0]),
        ("rmi", [2, -3, 1, -1]),
        ("rpi", [3, -2, 2, 0]),
    ],
)
def test_floats_become_integers_by_the_rounding_asked_for(rounding, expected):
    x = floats([2.5, -2.5, 1.5, -0.25])
    found = run_lanes(f"cvt.{rounding}.s32.f32 %d, %a0;", x, out=np.int32)
    assert found[:4].tolist() == expected


def test_integers_are_clamped_and_nan_is_zero():
    x = floats([1e20, -1e20, NAN, 3e9])
    assert run_lanes("cvt.rzi.s32.f32 %d, %a0;", x, out=np.int32)[:4].tolist() == [
        2**31 - 1, -(2**31), 0, 2**31 - 1,
    ]  # fmt: skip
    assert run_lanes("cvt.rzi.u32.f32 %d, %a0;", x)[:4].tolist() == [2**32 - 1, 0, 0, 3000000000]


def test_integers_become_floats_rounded_to_nearest():
    x = np.array([16777217, 0xFFFFFFFF, 5, 0x80000000] * 8, np.uint32)
    np.testing.assert_array_equal(
        run_lanes("cvt.rn.f32.u32 %d, %a0;", x, out=np.float32), x.astype(np.float32)
    )
    np.testing.assert_array_equal(
        run_lanes("cvt.rn.f32.s32 %d, %a0;", x, out=np.float32),
        x.view(np.int32).astype(np.float32),
    )
    assert run_lanes("cvt.rz.f32.u32 %d, %a0;", x, out=np.float32)[0] == 16777216


def test_narrow_integers_are_extended_by_their_sign():
    x = np.array([0xFFFF8001, 0x00007FFF] * 16, np.uint32)
    assert run_lanes("cvt.s32.s16 %d, %a0;", x, out=np.int32)[:2].tolist() == [-32767, 32767]
    assert run_lanes("cvt.u32.u8 %d, %a0;", x)[:2].tolist() == [1, 0xFF]
    assert run_lanes("cvt.s64.s32 %d, %a0;", x, out=np.int64)[0] == -32767
    assert run_lanes("cvt.sat.s8.s32 %r1, %a0; cvt.s32.s8 %d, %r1;", x, out=np.int32)[
        :2
    ].tolist() == [-128, 127]


@pytest.mark.parametrize(
    ("relation", "expected"),
    [("lt", [1, 0, 0]), ("ltu", [1, 0, 1]), ("ne", [1, 0, 0]), ("neu", [1, 0, 1]),
     ("equ", [0, 1, 1]), ("geu", [0, 1, 1]), ("num", [1, 1, 0]), ("nan", [0, 0, 1])],
)  # fmt: skip
def test_comparisons_with_nan_follow_ordered_and_unordered(relation, expected):
    a, b = floats([1, 2, NAN]), floats([2, 2, 2])
    found = run_lanes(f"setp.{relation}.f32 %p1, %a0, %a1; selp.b32 %d, 1, 0, %p1;", a, b)
    assert found[:3].tolist() == expected


def test_setp_combines_and_writes_the_inverse_too():
    a = np.arange(32, dtype=np.uint32)
    body = """setp.lt.u32 %p1, %a0, 20; setp.gt.and.u32 %p2|%p3, %a0, 10, %p1;
        selp.b32 %r1, 1, 0, %p2; selp.b32 %r2, 2, 0, %p3; or.b32 %d, %r1, %r2;"""
    expected = [(1 if x > 10 else 2) if x < 20 else 0 for x in range(32)]
    assert run_lanes(body, a).tolist() == expected


def test_signed_and_unsigned_comparison_differ():
    a = np.array([0xFFFFFFFF] * 32, np.uint32)
    assert run_lanes("setp.lt.s32 %p1, %a0, 1; selp.b32 %d, 1, 0, %p1;", a)[0] == 1
    assert run_lanes("setp.lt.u32 %p1, %a0, 1; selp.b32 %d, 1, 0, %p1;", a)[0] == 0


def test_set_gives_all_ones_or_one():
    a = np.array([3, 9] * 16, np.uint32)
    assert run_lanes("set.gt.u32.u32 %d, %a0, 5;", a)[:2].tolist() == [0, 0xFFFFFFFF]
    assert run_lanes("set.gt.f32.u32 %d, %a0, 5;", a, out=np.float32)[:2].tolist() == [0.0, 1.0]


def test_slct_looks_at_the_sign():
    a = floats([-1, 2])
    found = run_lanes("mov.u32 %r1, 7; mov.u32 %r2, 9; slct.u32.f32 %d, %r1, %r2, %a0;", a)
    assert found[:2].tolist() == [9, 7]


def test_a_guarded_write_keeps_the_other_lanes():
    a = np.arange(32, dtype=np.uint32)
    body = "mov.u32 %d, 5; setp.lt.u32 %p1, %a0, 4; @%p1 mov.u32 %d, 8; @!%p1 add.u32 %d, %d, %a0;"
    assert run_lanes(body, a).tolist() == [8] * 4 + [5 + x for x in range(4, 32)]


def test_mov_takes_registers_apart_and_together():
    a = np.array([0x1122334455667788] * 32, np.uint64)
    body = "mov.b64 {%r1, %r2}, %a0; mov.b32 {%h1, %h2}, %r1; mov.b32 %r3, {%h2, %h1}; "
    assert run_lanes(body + "mov.b64 %d, {%r3, %r2};", a, out=np.uint64)[0] == 0x1122334477885566
