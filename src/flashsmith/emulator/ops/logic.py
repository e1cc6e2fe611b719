"""Bits: logic, shifts, bit fields, byte permutation, counting."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from flashsmith.emulator.checks.undefined import spreads
from flashsmith.emulator.machine.emit import Emitter, name_of
from flashsmith.emulator.machine.opcode import Unknown, opcode
from flashsmith.emulator.machine.values import Value
from flashsmith.emulator.ptx.instruction import Imm, Instruction
from flashsmith.emulator.ptx.types import SIZES

_ONES = np.array([value.bit_count() for value in range(256)], np.uint32)  # in a byte
_SYMBOL = {"and": "&", "or": "|", "xor": "^"}


def _bits(kind: str) -> str:
    return "pred" if kind == "pred" else f"u{8 * SIZES[kind]}"


@opcode("and", "or", "xor", counts_as="logic")
def emit_logic(e: Emitter, i: Instruction) -> None:
    """and, or, xor of bits or predicates."""
    d, a, b = i.operands
    kind = _bits(i.type)
    e.write(d, f"{e.read(a, kind)} {_SYMBOL[i.opcode]} {e.read(b, kind)}", kind)


@opcode("not", counts_as="logic")
def emit_not(e: Emitter, i: Instruction) -> None:
    """not of bits or a predicate."""
    kind = _bits(i.type)
    e.write(i.operands[0], f"~{e.read(i.operands[1], kind)}", kind)


@opcode("cnot", counts_as="logic")
def emit_cnot(e: Emitter, i: Instruction) -> None:
    """cnot: 1 for zero, else 0."""
    kind = _bits(i.type)
    zero = e.constant(Imm(0), kind)
    value = f"({e.read(i.operands[1], kind)} == {zero}).astype({name_of(kind)})"
    e.write(i.operands[0], value, kind)


@opcode("shl", "shr", counts_as="logic")
def emit_shift(e: Emitter, i: Instruction) -> None:
    """shl, shr; amounts beyond the width give 0, or the sign (numpy does the same)."""
    d, a, b = i.operands
    kind = i.type if i.opcode == "shr" and i.type[0] == "s" else _bits(i.type)
    if isinstance(b, Imm):
        amount = e.constant(Imm(min(b.value & 0xFFFFFFFF, 255 if SIZES[kind] == 1 else 64)), kind)
    else:
        amount = e.read(b, "u32")
        amount = amount if kind == "u32" else f"{amount}.astype({name_of(kind)})"
        if kind[0] == "s":
            amount = f"np.minimum({e.read(b, 'u32')}, U32(63)).astype({name_of(kind)})"
    e.write(d, f"{e.read(a, kind)} {'<<' if i.opcode == 'shl' else '>>'} {amount}", kind)


@opcode("shf", counts_as="logic")
def emit_funnel(e: Emitter, i: Instruction) -> None:
    """shf.l, shf.r: a shift of two registers as one of 64 bits."""
    d, low, high, amount = i.operands
    function = e.use(funnel)
    arguments = ", ".join(e.read(x, "u32") for x in (low, high, amount))
    e.write(d, f"{function}({arguments}, {i.has('l')}, {i.has('wrap')})", "u32")


def funnel(low: Value, high: Value, amount: Value, left: bool, wrap: bool) -> Value:
    """The upper word of a left shift, the lower word of a right shift."""
    steps = amount & np.uint32(31) if wrap else np.minimum(amount, np.uint32(32))
    both = (high.astype(np.uint64) << np.uint64(32)) | low
    if left:
        both = both << steps.astype(np.uint64)
        return (both >> np.uint64(32)).astype(np.uint32)
    return (both >> steps.astype(np.uint64)).astype(np.uint32)


@opcode("lop3", counts_as="logic")
def emit_lop3(e: Emitter, i: Instruction) -> None:
    """lop3.b32: any function of three bits by its truth table."""
    if len(i.operands) != 5 or not isinstance(i.operands[4], Imm):
        raise Unknown("only lop3.b32 d, a, b, c, immLut")
    d, a, b, third = i.operands[:4]
    x, y, z = (e.assign(e.read(operand, "u32")) for operand in (a, b, third))
    table = i.operands[4].value
    terms = []
    for row in range(8):
        if table >> row & 1:
            parts = (
                x if row & 4 else f"~{x}",
                y if row & 2 else f"~{y}",
                z if row & 1 else f"~{z}",
            )
            terms.append(f"({' & '.join(parts)})")
    zero, ones = e.constant(Imm(0), "u32"), e.constant(Imm(-1), "u32")
    known = {0: zero, 255: ones, 0xC0: f"{x} & {y}", 0x80: f"{x} & {y} & {z}",
             0x96: f"{x} ^ {y} ^ {z}", 0xFE: f"{x} | {y} | {z}", 0xEA: f"({x} & {y}) | {z}",
             0xF8: f"{x} | ({y} & {z})", 0x6A: f"({x} & {y}) ^ {z}", 0x78: f"{x} ^ ({y} & {z})",
             0xCA: f"({x} & {y}) | (~{x} & {z})"}  # fmt: skip
    e.write(d, known.get(table, " | ".join(terms)), "u32")


@opcode("bfe", counts_as="logic")
def emit_bfe(e: Emitter, i: Instruction) -> None:
    """bfe: a bit field, extended by its sign for signed types."""
    d, a, position, length = i.operands
    function = e.use(bit_field)
    arguments = f"{e.read(a, i.type)}, {e.read(position, 'u32')}, {e.read(length, 'u32')}"
    e.write(d, f"{function}({arguments})", i.type)


def bit_field(value: Value, position: Value, length: Value) -> Value:
    """Bits `position` to `position + length` of each value."""
    dtype = np.asarray(value).dtype
    width = 8 * dtype.itemsize
    place = (position & np.uint32(255)).astype(np.int64)
    count = (length & np.uint32(255)).astype(np.int64)
    wide = value.astype(np.int64)
    if dtype.kind == "u":
        raw = value.astype(np.uint64) >> np.minimum(place, 63).astype(np.uint64)
        raw = np.where(place > 63, np.uint64(0), raw)
        mask = np.where(
            count >= 64, ~np.uint64(0), (np.uint64(1) << count.astype(np.uint64)) - np.uint64(1)
        )
        return np.where(count == 0, np.uint64(0), raw & mask).astype(dtype)[()]
    top = np.minimum(place + count - 1, width - 1)
    sign = (wide >> top) & 1
    raw = wide >> np.minimum(place, width - 1)
    kept = np.minimum(count, np.maximum(width - place, 0))
    mask = np.where(kept >= 64, -1, (np.int64(1) << np.minimum(kept, 63)) - 1)
    field = (raw & mask) | np.where(sign == 1, ~mask, 0)
    return np.where(count == 0, 0, field).astype(dtype)[()]


@opcode("bfi", counts_as="logic")
def emit_bfi(e: Emitter, i: Instruction) -> None:
    """bfi: puts the low bits of `a` into a field of `b`."""
    d, a, b, position, length = i.operands
    kind = _bits(i.type)
    x, y = e.read(a, kind), e.read(b, kind)
    if isinstance(position, Imm) and isinstance(length, Imm):
        width = 8 * SIZES[kind]
        place, count = position.value & 255, length.value & 255
        mask = (((1 << count) - 1) << place) & ((1 << width) - 1)
        keep = e.constant(Imm(~mask), kind)
        moved = f"({x} << {e.constant(Imm(min(place, 64)), kind)})"
        e.write(d, f"({moved} & {e.constant(Imm(mask), kind)}) | ({y} & {keep})", kind)
        return
    function = e.use(insert_field)
    e.write(d, f"{function}({x}, {y}, {e.read(position, 'u32')}, {e.read(length, 'u32')})", kind)


def insert_field(a: Value, b: Value, position: Value, length: Value) -> Value:
    """bfi with a field that is only known at run time."""
    dtype = np.asarray(a).dtype
    place = (position & np.uint32(255)).astype(dtype)
    count = (length & np.uint32(255)).astype(dtype)
    one = dtype.type(1)
    mask = ((one << count) - one) << place
    return ((a << place) & mask) | (b & ~mask)


@opcode("bmsk", counts_as="logic")
def emit_bmsk(e: Emitter, i: Instruction) -> None:
    """bmsk.clamp: a mask of `b` ones from bit `a`."""
    d, a, b = i.operands
    function = e.use(bit_mask)
    e.write(d, f"{function}({e.read(a, 'u32')}, {e.read(b, 'u32')}, {i.has('wrap')})", "u32")


def bit_mask(position: Value, length: Value, wrap: bool) -> Value:
    """Ones from a bit upwards."""
    place = position & np.uint32(31) if wrap else np.minimum(position, np.uint32(32))
    count = length & np.uint32(31) if wrap else np.minimum(length, np.uint32(32))
    ones = (np.uint64(1) << count.astype(np.uint64)) - np.uint64(1)
    return (ones << place.astype(np.uint64)).astype(np.uint32)


@opcode("prmt", counts_as="logic")
def emit_prmt(e: Emitter, i: Instruction) -> None:
    """prmt.b32: picks four bytes of eight."""
    if i.type != "b32":
        raise Unknown("only the default mode of prmt")
    d, a, b, selector = i.operands
    arguments = ", ".join(e.read(x, "u32") for x in (a, b, selector))
    e.write(d, f"{e.use(permute)}({arguments})", "u32")


def permute(a: Value, b: Value, selector: Value) -> Value:
    """Bytes of `b:a` chosen by nibbles; the top bit of a nibble spreads the byte's sign."""
    both = a.astype(np.uint64) | (b.astype(np.uint64) << np.uint64(32))
    out: Value = np.uint32(0)
    for byte in range(4):
        nibble = (selector >> np.uint32(4 * byte)).astype(np.uint64)
        value = (both >> (np.uint64(8) * (nibble & np.uint64(7)))) & np.uint64(255)
        sign = np.where(value & np.uint64(128), np.uint64(255), np.uint64(0))
        value = np.where(nibble & np.uint64(8), sign, value)
        out = out | (value.astype(np.uint32) << np.uint32(8 * byte))
    return out[()] if isinstance(out, np.ndarray) else out


@opcode("popc", "clz", "brev", "bfind", "fns", counts_as="logic")
def emit_count(e: Emitter, i: Instruction) -> None:
    """popc, clz, brev, bfind."""
    d, a = i.operands[:2]
    if i.opcode == "fns":
        raise Unknown("fns")
    kind = i.type if i.opcode == "bfind" else _bits(i.type)
    functions: dict[str, Callable[..., Value]] = {
        "popc": popc, "clz": clz, "brev": brev, "bfind": bfind,
    }  # fmt: skip
    function = functions[i.opcode]
    extra = f", {i.has('shiftamt')}" if i.opcode == "bfind" else ""
    result = kind if i.opcode == "brev" else "u32"
    e.write(d, f"{e.use(function)}({e.read(a, kind)}{extra})", result)


@spreads
def popc(value: Value) -> Value:
    """Bits that are one."""
    raw = np.ascontiguousarray(value)[..., None].view(np.uint8)
    return np.asarray(_ONES[raw].sum(axis=-1, dtype=np.uint32))[()]


def _top(value: Value) -> Value:
    """Position of the highest one, -1 for zero."""
    guess = np.frexp(value.astype(np.float64))[1] - 1
    # Rounding to 53 bits may carry into the next power of two.
    power = np.minimum(np.maximum(guess, 0), 63).astype(np.uint64)
    over = (value.astype(np.uint64) >> power) == 0
    return np.where(value == 0, -1, guess - (over & (value != 0)))


@spreads
def clz(value: Value) -> Value:
    """Zeros above the highest one."""
    return (8 * np.asarray(value).dtype.itemsize - 1 - _top(value)).astype(np.uint32)[()]


@spreads
def bfind(value: Value, shift_amount: bool) -> Value:
    """Position of the highest bit that differs from the sign."""
    dtype = np.asarray(value).dtype
    raw = np.where(value < 0, ~value, value).astype(f"u{dtype.itemsize}")
    top = _top(raw)
    if shift_amount:
        top = np.where(top < 0, -1, 8 * dtype.itemsize - 1 - top)
    return top.astype(np.int64).astype(np.uint32)[()]


@spreads
def brev(value: Value) -> Value:
    """Bits in reverse order."""
    value = np.asarray(value)
    out = np.zeros_like(value)
    one = value.dtype.type(1)
    width = 8 * value.dtype.itemsize
    for bit in range(width):
        shift = value.dtype.type(bit)
        out |= ((value >> shift) & one) << value.dtype.type(width - 1 - bit)
    return out[()]
