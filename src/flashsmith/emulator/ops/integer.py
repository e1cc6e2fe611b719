"""Integer arithmetic."""

from __future__ import annotations

import numpy as np

from flashsmith.emulator.checks.undefined import spreads
from flashsmith.emulator.machine.emit import Emitter, name_of
from flashsmith.emulator.machine.opcode import Unknown, opcode
from flashsmith.emulator.machine.values import Value
from flashsmith.emulator.ops import floating
from flashsmith.emulator.ptx.instruction import Instruction, Operand
from flashsmith.emulator.ptx.types import SIZES

_SYMBOL = {"add": "+", "sub": "-", "mul": "*"}


def is_float(kind: str) -> bool:
    """Whether a PTX type holds floating-point numbers."""
    return kind in floating.TYPES


def unsigned(kind: str) -> str:
    """The unsigned type of the same size: wrapping arithmetic does not ask for the sign."""
    return f"u{8 * SIZES[kind]}"


def wider(kind: str) -> str:
    """The type of the same sign and twice the size."""
    return f"{kind[0]}{16 * SIZES[kind]}"


@opcode("add", "sub", counts_as="arithmetic")
def emit_add(e: Emitter, i: Instruction) -> None:
    """add, sub of every type; integers wrap unless `.sat`."""
    if is_float(i.type):
        floating.emit_binary(e, i)
        return
    d, a, b = i.operands
    if i.has("cc"):
        _emit_carry_out(e, i)
        return
    if i.has("sat"):
        function = e.use(saturated)
        e.write(
            d, f"{function}({_SYMBOL[i.opcode]!r}, {e.read(a, 's32')}, {e.read(b, 's32')})", "s32"
        )
        return
    kind = unsigned(i.type)
    e.write(d, f"{e.read(a, kind)} {_SYMBOL[i.opcode]} {e.read(b, kind)}", kind)


def saturated(symbol: str, a: Value, b: Value) -> Value:
    """add.sat.s32 and sub.sat.s32."""
    wide = a.astype(np.int64) + (b if symbol == "+" else -b.astype(np.int64))
    return np.clip(wide, -(2**31), 2**31 - 1).astype(np.int32)


def _emit_carry_out(e: Emitter, i: Instruction) -> None:
    """add.cc: the carry is kept in a local until the addc that follows in the same segment."""
    d, a, b = i.operands
    kind = unsigned(i.type)
    x, y = e.assign(e.read(a, kind)), e.assign(e.read(b, kind))
    total = e.assign(f"{x} {_SYMBOL[i.opcode]} {y}")
    e.do(f"carry = {total} < {x}" if i.opcode == "add" else f"carry = {x} < {y}")
    e.write(d, total, kind)


@opcode("addc", "subc", counts_as="arithmetic")
def emit_addc(e: Emitter, i: Instruction) -> None:
    """addc, subc: with the carry of the instruction before."""
    d, a, b = i.operands
    kind = unsigned(i.type)
    symbol = "+" if i.opcode == "addc" else "-"
    x, y = e.assign(e.read(a, kind)), e.assign(e.read(b, kind))
    old = e.assign(f"carry.astype({name_of(kind)})")
    total = e.assign(f"{x} {symbol} {y} {symbol} {old}")
    if i.has("cc"):
        order = f"({total} < {x}) | (({total} == {x}) & ({old} != 0))"
        borrow = f"({x} < {y}) | (({x} == {y}) & ({old} != 0))"
        e.do(f"carry = {order if symbol == '+' else borrow}")
    e.write(d, total, kind)


@opcode("mul", counts_as="arithmetic")
def emit_mul(e: Emitter, i: Instruction) -> None:
    """mul.lo, mul.hi, mul.wide, and floating-point mul."""
    if is_float(i.type):
        floating.emit_binary(e, i)
        return
    d, a, b = i.operands
    e.write(d, *_product(e, i, a, b))


def _product(e: Emitter, i: Instruction, a: Operand, b: Operand) -> tuple[str, str]:
    kind = i.type
    if i.has("wide"):
        wide = name_of(wider(kind))
        return f"{e.read(a, kind)}.astype({wide}) * {e.read(b, kind)}.astype({wide})", wider(kind)
    if i.has("hi"):
        return f"{e.use(high_product)}({e.read(a, kind)}, {e.read(b, kind)})", kind
    kind = unsigned(kind)
    return f"{e.read(a, kind)} * {e.read(b, kind)}", kind


def high_product(a: Value, b: Value) -> Value:
    """The upper half of the product."""
    dtype = np.asarray(a).dtype
    if dtype.itemsize < 8:
        wide = np.int64 if dtype.kind == "i" else np.uint64
        bits = dtype.type(8 * dtype.itemsize).astype(wide)
        return ((a.astype(wide) * b.astype(wide)) >> bits).astype(dtype)
    x, y = a.astype(np.uint64), b.astype(np.uint64)
    half, low = np.uint64(32), np.uint64(0xFFFFFFFF)
    x0, x1, y0, y1 = x & low, x >> half, y & low, y >> half
    middle = x1 * y0 + ((x0 * y0) >> half)
    carry = (middle & low) + x0 * y1
    top = x1 * y1 + (middle >> half) + (carry >> half)
    if dtype.kind == "i":
        zero = np.uint64(0)
        top = top - np.where(a < 0, y, zero) - np.where(b < 0, x, zero)
    return top.astype(np.uint64).view(dtype)


@opcode("mad", counts_as="arithmetic")
def emit_mad(e: Emitter, i: Instruction) -> None:
    """mad.lo, mad.hi, mad.wide; mad of floats is fma."""
    if is_float(i.type):
        floating.emit_fma(e, i)
        return
    d, a, b, addend = i.operands
    product, kind = _product(e, i, a, b)
    kind_u = unsigned(kind)
    if kind != kind_u:
        product = f"({product}).view({name_of(kind_u)})"
    e.write(d, f"{product} + {e.read(addend, kind_u)}", kind_u)


@opcode("mul24", "mad24", counts_as="arithmetic")
def emit_mul24(e: Emitter, i: Instruction) -> None:
    """mul24.lo, mad24.lo: products of the low 24 bits."""
    if i.has("hi"):
        raise Unknown("only .lo")
    shift = e.value("K_shift8", np.uint32(8))
    low = [
        f"(({e.read(operand, 'u32')} << {shift}).view({name_of(i.type)}) >> "
        f"{name_of(i.type)}(8)).astype(U32)"
        for operand in i.operands[1:3]
    ]
    tail = f" + {e.read(i.operands[3], 'u32')}" if i.opcode == "mad24" else ""
    e.write(i.operands[0], f"{low[0]} * {low[1]}{tail}", "u32")


@opcode("div", "rem", counts_as="arithmetic")
def emit_div(e: Emitter, i: Instruction) -> None:
    """Integer division truncates; quotient and remainder by zero are all ones (H200, 2026-11)."""
    if is_float(i.type):
        floating.emit_division(e, i)
        return
    d, a, b = i.operands
    function = e.use(quotient if i.opcode == "div" else remainder)
    e.write(d, f"{function}({e.read(a, i.type)}, {e.read(b, i.type)})", i.type)


def quotient(a: Value, b: Value) -> Value:
    """Truncated quotient."""
    dtype = np.asarray(a).dtype
    safe = np.where(b == 0, dtype.type(1), b)
    floor = a // safe
    if dtype.kind == "i":
        floor = floor + ((a % safe != 0) & ((a < 0) != (safe < 0)))
    ones = np.array(-1).astype(dtype)
    return np.where(b == 0, ones, floor).astype(dtype)[()]


def remainder(a: Value, b: Value) -> Value:
    """Remainder with the sign of the dividend."""
    dtype = np.asarray(a).dtype
    safe = np.where(b == 0, dtype.type(1), b)
    ones = np.array(-1).astype(dtype)
    return np.where(b == 0, ones, np.fmod(a, safe)).astype(dtype)[()]


@opcode("min", "max", counts_as="arithmetic")
def emit_min(e: Emitter, i: Instruction) -> None:
    """min, max of every type; floats ignore a NaN unless `.NaN`."""
    if is_float(i.type):
        floating.emit_extreme(e, i)
        return
    d, a, b = i.operands
    name = "np.minimum" if i.opcode == "min" else "np.maximum"
    if i.type in ("u16x2", "s16x2"):
        if i.has("relu"):
            raise Unknown("relu of packed 16-bit integers")
        call = f"{e.use(_extreme_of_pairs)}({e.read(a, 'u32')}, {e.read(b, 'u32')}"
        e.write(d, f"{call}, {name}, {i.type[0] == 's'})", "u32")
        return
    expression = f"{name}({e.read(a, i.type)}, {e.read(b, i.type)})"
    if i.has("relu"):
        expression = f"np.maximum({expression}, {name_of(i.type)}(0))"
    e.write(d, expression, i.type)


@spreads
def _extreme_of_pairs(a: Value, b: Value, pick: np.ufunc, signed: bool) -> Value:
    """min or max of both halves of 32-bit words."""
    kind = np.int16 if signed else np.uint16
    both = np.broadcast_arrays(np.asarray(a, np.uint32), np.asarray(b, np.uint32))
    x, y = (np.ascontiguousarray(words)[..., None].view(kind) for words in both)
    return pick(x, y).view(np.uint32)[..., 0][()]


@opcode("abs", "neg", counts_as="arithmetic")
def emit_abs(e: Emitter, i: Instruction) -> None:
    """abs, neg of every type."""
    if is_float(i.type):
        floating.emit_sign(e, i)
        return
    d, a = i.operands
    value = e.read(a, i.type)
    e.write(d, f"np.abs({value})" if i.opcode == "abs" else f"(-{value})", i.type)


@opcode("sad", counts_as="arithmetic")
def emit_sad(e: Emitter, i: Instruction) -> None:
    """sad: addend plus absolute difference."""
    d, a, b, addend = i.operands
    x, y = e.assign(e.read(a, i.type)), e.assign(e.read(b, i.type))
    kind = name_of(unsigned(i.type))
    difference = f"(np.maximum({x}, {y}) - np.minimum({x}, {y})).view({kind})"
    e.write(d, f"{difference} + {e.read(addend, unsigned(i.type))}", unsigned(i.type))


@opcode("dp4a", "dp2a", counts_as="arithmetic")
def emit_dp(e: Emitter, i: Instruction) -> None:
    """dp4a: four products of bytes and an addend."""
    if i.opcode == "dp2a":
        raise Unknown("dp2a")
    d, a, b, addend = i.operands
    kinds = [m for m in i.modifiers if m in SIZES]
    bytes_of = e.use(byte_lanes)
    x = f"{bytes_of}({e.read(a, 'u32')}, {kinds[0] == 's32'})"
    y = f"{bytes_of}({e.read(b, 'u32')}, {kinds[-1] == 's32'})"
    e.write(d, f"({x} * {y}).sum(axis=-1).astype(U32) + {e.read(addend, 'u32')}", "u32")


def byte_lanes(value: Value, is_signed: bool) -> Value:
    """The four bytes of each word as 64-bit numbers."""
    raw = np.ascontiguousarray(value)[..., None].view(np.int8 if is_signed else np.uint8)
    return raw.astype(np.int64).reshape(*np.shape(value), 4)
