"""Logic, shifts, bit fields and byte permutation, against Python's integers."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lanes import run_lanes

WORDS = st.lists(st.integers(0, 2**32 - 1), min_size=32, max_size=32)
SMALL = st.lists(st.integers(0, 70), min_size=32, max_size=32)


def words(values):
    return np.array(values, np.uint32)


def each(function, *arrays):
    return [function(*(int(x) for x in v)) & 0xFFFFFFFF for v in zip(*arrays, strict=True)]


def signed(value):
    return value - (1 << 32) if value >> 31 else value


@settings(max_examples=10, deadline=None)
@given(WORDS, SMALL)
def test_shifts_past_the_width_give_zero_or_the_sign(values, amounts):
    a, n = words(values), words(amounts)
    assert run_lanes("shl.b32 %d, %a0, %a1;", a, n).tolist() == each(
        lambda x, s: x << s if s < 32 else 0, a, n
    )
    assert run_lanes("shr.u32 %d, %a0, %a1;", a, n).tolist() == each(lambda x, s: x >> s, a, n)
    assert run_lanes("shr.s32 %d, %a0, %a1;", a, n).tolist() == each(
        lambda x, s: signed(x) >> s, a, n
    )


@settings(max_examples=10, deadline=None)
@given(WORDS, WORDS, WORDS, st.integers(0, 255))
def test_lop3_is_any_function_of_three_bits(x, y, z, table):
    a, b, c = words(x), words(y), words(z)
    found = run_lanes(f"lop3.b32 %d, %a0, %a1, %a2, {table};", a, b, c)

    def expected(p, q, r):
        out = 0
        for bit in range(32):
            row = (p >> bit & 1) << 2 | (q >> bit & 1) << 1 | r >> bit & 1
            out |= (table >> row & 1) << bit
        return out

    assert found.tolist() == each(expected, a, b, c)


def test_lop3_knows_its_common_tables_and_their_operand_order():
    a, b, c = words([0xF0F0F0F0] * 32), words([0xCCCCCCCC] * 32), words([0xAAAAAAAA] * 32)
    for table in range(256):
        found = int(run_lanes(f"lop3.b32 %d, %a0, %a1, %a2, {table};", a, b, c)[0])
        assert found == table * 0x01010101, table


@settings(max_examples=10, deadline=None)
@given(WORDS, SMALL, SMALL)
def test_bit_fields_are_taken_out_with_their_sign(values, places, lengths):
    a, p, n = words(values), words(places), words(lengths)

    def unsigned_field(x, place, length):
        return (x >> place) & ((1 << length) - 1)

    def signed_field(x, place, length):
        if length == 0:
            return 0
        top = min(place + length - 1, 31)
        sign = x >> top & 1
        bits = (x >> place) & ((1 << length) - 1) if place < 32 else 0
        kept = min(length, max(32 - place, 0))
        return bits | (-1 << kept if sign else 0)

    assert run_lanes("bfe.u32 %d, %a0, %a1, %a2;", a, p, n).tolist() == each(
        unsigned_field, a, p, n
    )
    assert run_lanes("bfe.s32 %d, %a0, %a1, %a2;", a, p, n).tolist() == each(signed_field, a, p, n)


@pytest.mark.parametrize(("place", "length"), [(0, 32), (4, 8), (28, 8), (0, 0), (31, 1)])
def test_bfi_puts_a_field_in_by_constant_or_register(place, length):
    a, b = words([0x89ABCDEF] * 32), words([0x01234567] * 32)
    mask = (((1 << length) - 1) << place) & 0xFFFFFFFF
    expected = ((0x89ABCDEF << place) & mask) | (0x01234567 & ~mask & 0xFFFFFFFF)
    constant = run_lanes(f"bfi.b32 %d, %a0, %a1, {place}, {length};", a, b)
    register = run_lanes(
        f"mov.u32 %r1, {place}; mov.u32 %r2, {length}; bfi.b32 %d, %a0, %a1, %r1, %r2;", a, b
    )
    assert constant[0] == register[0] == expected


@settings(max_examples=10, deadline=None)
@given(WORDS, WORDS, WORDS)
def test_prmt_picks_bytes_and_spreads_signs(x, y, selectors):
    a, b, s = words(x), words(y), words(selectors)

    def expected(low, high, selector):
        both = [(low | high << 32) >> 8 * k & 255 for k in range(8)]
        out = 0
        for byte in range(4):
            nibble = selector >> 4 * byte & 15
            value = both[nibble & 7]
            out |= (255 * (value >> 7) if nibble & 8 else value) << 8 * byte
        return out

    assert run_lanes("prmt.b32 %d, %a0, %a1, %a2;", a, b, s).tolist() == each(expected, a, b, s)


@settings(max_examples=10, deadline=None)
@given(WORDS, WORDS, SMALL)
def test_funnel_shifts_see_both_words(low, high, amounts):
    a, b, n = words(low), words(high), words(amounts)
    both = lambda x, y: x | y << 32  # noqa: E731
    assert run_lanes("shf.l.wrap.b32 %d, %a0, %a1, %a2;", a, b, n).tolist() == each(
        lambda x, y, s: both(x, y) << (s & 31) >> 32, a, b, n
    )
    assert run_lanes("shf.r.clamp.b32 %d, %a0, %a1, %a2;", a, b, n).tolist() == each(
        lambda x, y, s: both(x, y) >> min(s, 32), a, b, n
    )


@settings(max_examples=10, deadline=None)
@given(WORDS)
def test_bits_are_counted_found_and_reversed(values):
    a = words([*values[:29], 0, 1, 0xFFFFFFFF])
    assert run_lanes("popc.b32 %d, %a0;", a).tolist() == each(lambda x: x.bit_count(), a)
    assert run_lanes("clz.b32 %d, %a0;", a).tolist() == each(lambda x: 32 - x.bit_length(), a)
    assert run_lanes("brev.b32 %d, %a0;", a).tolist() == each(
        lambda x: int(f"{x:032b}"[::-1], 2), a
    )
    assert run_lanes("bfind.u32 %d, %a0;", a).tolist() == each(lambda x: x.bit_length() - 1, a)


def test_logic_of_predicates_and_words():
    a, b = words([12] * 32), words([10] * 32)
    body = """setp.gt.u32 %p1, %a0, 11; setp.gt.u32 %p2, %a1, 11; xor.pred %p3, %p1, %p2;
        not.pred %p4, %p2; and.pred %p5, %p3, %p4; or.b32 %r1, %a0, %a1;
        selp.b32 %d, %r1, 0, %p5;"""
    assert run_lanes(body, a, b)[0] == 14
    assert run_lanes("cnot.b32 %d, %a0;", words([0, 5] * 16))[:2].tolist() == [1, 0]
    assert run_lanes("not.b32 %d, %a0;", a)[0] == 0xFFFFFFFF ^ 12
