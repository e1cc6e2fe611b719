"""Integer arithmetic, lane by lane, against Python's unbounded integers."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lanes import run_lanes

EDGES = [0, 1, 2, 31, 0x7FFFFFFF, 0x80000000, 0x80000001, 0xFFFFFFFE, 0xFFFFFFFF, 0x12345678]
A = np.array(EDGES * 10 + [7] * 28, np.uint32)
B = np.array([e for e in EDGES for _ in range(10)] + [3] * 28, np.uint32)


def signed(value: int, bits: int = 32) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def each(function, *arrays):
    return [function(*(int(x) for x in values)) for values in zip(*arrays, strict=True)]


@pytest.mark.parametrize(
    ("instruction", "expected"),
    [
        ("add.s32", lambda a, b: a + b),
        ("sub.u32", lambda a, b: a - b),
        ("mul.lo.s32", lambda a, b: a * b),
        ("mul.hi.u32", lambda a, b: a * b >> 32),
        ("mul.hi.s32", lambda a, b: signed(a) * signed(b) >> 32),
        ("min.s32", lambda a, b: min(signed(a), signed(b))),
        ("max.u32", max),
        ("max.s32", lambda a, b: max(signed(a), signed(b))),
        ("div.u32", lambda a, b: a // b if b else -1),
        ("div.s32", lambda a, b: int(signed(a) / signed(b)) if b else -1),
        ("rem.u32", lambda a, b: a % b if b else -1),
        ("rem.s32", lambda a, b: int(np.fmod(signed(a), signed(b))) if b else -1),
        ("add.sat.s32", lambda a, b: max(-(2**31), min(2**31 - 1, signed(a) + signed(b)))),
    ],
)
def test_two_operands_give_what_the_isa_says(instruction, expected):
    found = run_lanes(f"{instruction} %d, %a0, %a1;", A, B)
    assert found.tolist() == [x & 0xFFFFFFFF for x in each(expected, A, B)]


@pytest.mark.parametrize("pick", [min, max], ids=["min", "max"])
@pytest.mark.parametrize("sign", ["u", "s"])
def test_pairs_of_16_bits_are_compared_apart(pick, sign):
    found = run_lanes(f"{pick.__name__}.{sign}16x2 %d, %a0, %a1;", A, B)

    def half(a, b, shift):
        parts = [x >> shift & 0xFFFF for x in (a, b)]
        return pick(parts, key=lambda x: signed(x, 16) if sign == "s" else x) << shift

    expected = each(lambda a, b: half(a, b, 0) | half(a, b, 16), A, B)
    assert found.tolist() == expected


@pytest.mark.parametrize("sign", ["u", "s"])
def test_wide_products_keep_all_64_bits(sign):
    found = run_lanes(f"mul.wide.{sign}32 %d, %a0, %a1;", A, B, out=np.uint64)
    take = signed if sign == "s" else int
    assert found.tolist() == [x & (1 << 64) - 1 for x in each(lambda a, b: take(a) * take(b), A, B)]


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(0, 2**64 - 1), min_size=32, max_size=32), st.booleans())
def test_the_upper_half_of_64_bit_products_is_exact(values, is_signed):
    a = np.array(values, np.uint64)
    b = a[::-1].copy()
    kind = "s64" if is_signed else "u64"
    found = run_lanes(f"mul.hi.{kind} %d, %a0, %a1;", a, b, out=np.uint64)

    def exact(x, y):
        if is_signed:
            x, y = signed(x, 64), signed(y, 64)
        return (x * y >> 64) & (1 << 64) - 1

    assert found.tolist() == each(exact, a, b)


def test_mad_adds_after_the_product():
    found = run_lanes("mad.lo.s32 %d, %a0, %a1, %a0;", A, B)
    assert found.tolist() == each(lambda a, b: (a * b + a) & 0xFFFFFFFF, A, B)


def test_carries_travel_from_add_cc_to_addc():
    wide_a = np.array([0xFFFFFFFFFFFFFFFF, 0x00000000FFFFFFFF, 5, 1 << 63] * 8, np.uint64)
    wide_b = np.array([1, 1, 7, 1 << 63] * 8, np.uint64)
    body = """mov.b64 {%r1, %r2}, %a0; mov.b64 {%r3, %r4}, %a1;
        add.cc.u32 %r5, %r1, %r3; addc.u32 %r6, %r2, %r4; mov.b64 %d, {%r5, %r6};"""
    assert run_lanes(body, wide_a, wide_b, out=np.uint64).tolist() == (wide_a + wide_b).tolist()


def test_borrows_travel_from_sub_cc_to_subc():
    a = np.array([0, 1 << 32, 5, 1 << 63] * 8, np.uint64)
    b = np.array([1, 1, 7, 1] * 8, np.uint64)
    body = """mov.b64 {%r1, %r2}, %a0; mov.b64 {%r3, %r4}, %a1;
        sub.cc.u32 %r5, %r1, %r3; subc.u32 %r6, %r2, %r4; mov.b64 %d, {%r5, %r6};"""
    assert run_lanes(body, a, b, out=np.uint64).tolist() == (a - b).tolist()


def test_dp4a_sums_four_signed_products_of_bytes():
    a = np.array([0x01FF7F80] * 32, np.uint32)
    b = np.array([0x02030405] * 32, np.uint32)
    found = run_lanes("mov.u32 %r1, 100; dp4a.s32.s32 %d, %a0, %a1, %r1;", a, b)
    assert signed(int(found[0])) == 100 + 1 * 2 - 1 * 3 + 127 * 4 - 128 * 5


def test_absolute_value_and_negation_wrap_at_the_lowest_number():
    lowest = np.array([0x80000000, 5, 0xFFFFFFFF, 0] * 8, np.uint32)
    assert run_lanes("abs.s32 %d, %a0;", lowest)[:4].tolist() == [0x80000000, 5, 1, 0]
    assert run_lanes("neg.s32 %d, %a0;", lowest)[:4].tolist() == [0x80000000, 0xFFFFFFFB, 1, 0]


def test_sad_adds_the_absolute_difference():
    found = run_lanes("mov.u32 %r1, 10; sad.u32 %d, %a0, %a1, %r1;", A, B)
    assert found.tolist() == each(lambda a, b: (abs(a - b) + 10) & 0xFFFFFFFF, A, B)
