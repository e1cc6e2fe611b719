"""Comparisons and selections: setp, set, selp, slct."""

from __future__ import annotations

from flashsmith.emulator.machine import numerics
from flashsmith.emulator.machine.emit import Emitter, name_of
from flashsmith.emulator.machine.opcode import Unknown, opcode
from flashsmith.emulator.ptx.instruction import Imm, Instruction, Operand, Pair
from flashsmith.emulator.ptx.types import SIZES

_INTEGER = {
    "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
    "lo": "<", "ls": "<=", "hi": ">", "hs": ">=",
}  # fmt: skip
_ORDERED = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
# `x < y or unordered` is `not (x >= y)`.
_UNORDERED = {"equ": "!=", "neu": "==", "ltu": ">=", "leu": ">", "gtu": "<=", "geu": "<"}
_COMBINE = {"and": "&", "or": "|", "xor": "^"}
_FLOATS = ("f32", "f64", "f16", "bf16", "f16x2", "bf16x2")


def _comparison(e: Emitter, i: Instruction, kind: str, a: Operand, b: Operand) -> str:
    relation = i.modifiers[0]
    if kind not in _FLOATS:
        signed = kind if relation in ("lt", "le", "gt", "ge") and kind[0] == "s" else _raw(kind)
        return f"({e.read(a, signed)} {_INTEGER[relation]} {e.read(b, signed)})"
    if kind.endswith("x2"):
        raise Unknown("packed comparison")
    x, y = _float(e, i, kind, a), _float(e, i, kind, b)
    if relation in ("num", "nan"):
        x, y = e.assign(x), e.assign(y)
        either = f"(np.isnan({x}) | np.isnan({y}))"
        return either if relation == "nan" else f"(~{either})"
    if relation == "ne":  # ordered: false if either is NaN
        x, y = e.assign(x), e.assign(y)
        return f"(({x} < {y}) | ({x} > {y}))"
    if relation == "equ":
        x, y = e.assign(x), e.assign(y)
        return f"(~(({x} < {y}) | ({x} > {y})))"
    if relation == "neu":
        return f"({x} != {y})"
    if relation in _UNORDERED:
        return f"(~({x} {_UNORDERED[relation]} {y}))"
    return f"({x} {_ORDERED[relation]} {y})"


def _float(e: Emitter, i: Instruction, kind: str, operand: Operand) -> str:
    if kind in ("f16", "bf16"):
        return f"{e.use(numerics.from_half)}({e.read(operand, 'u16')}, {kind == 'bf16'})"
    value = e.read(operand, kind)
    return f"{e.use(numerics.flush)}({value})" if i.has("ftz") and kind == "f32" else value


def _raw(kind: str) -> str:
    return f"u{8 * SIZES[kind]}"


@opcode("setp", counts_as="compare")
def emit_setp(e: Emitter, i: Instruction) -> None:
    """setp.cmp{.bool}.type p|q, a, b{, c}."""
    destination, a, b = i.operands[:3]
    value = _comparison(e, i, i.type, a, b)
    combine = next((m for m in i.modifiers[1:] if m in _COMBINE), None)
    first, second = (
        (destination.first, destination.second)
        if isinstance(destination, Pair)
        else (destination, None)
    )
    if combine is None and second is None:
        e.write(first, value, "pred")
        return
    held = e.assign(value)
    other = e.read(i.operands[3], "pred") if combine else ""
    symbol = _COMBINE[combine] if combine else ""
    with_other = e.assign(f"{held} {symbol} {other}" if combine else held)
    if second is not None:
        inverse = e.assign(f"~{held} {symbol} {other}" if combine else f"~{held}")
        e.write(second, inverse, "pred")
    e.write(first, with_other, "pred")


@opcode("set", counts_as="compare")
def emit_set(e: Emitter, i: Instruction) -> None:
    """set.cmp{.bool}.dtype.stype d, a, b{, c}: all ones, or 1.0, for true."""
    d, a, b = i.operands[:3]
    kinds = [m for m in i.modifiers if m in SIZES]
    value = _comparison(e, i, kinds[-1], a, b)
    combine = next((m for m in i.modifiers[1:] if m in _COMBINE), None)
    if combine:
        value = f"({value} {_COMBINE[combine]} {e.read(i.operands[3], 'pred')})"
    target = kinds[0]
    yes = e.constant(Imm(1 if target == "f32" else -1), target)
    no = e.constant(Imm(0), target)
    e.write(d, f"np.where({value}, {yes}, {no})[()]", target)


@opcode("selp", counts_as="select")
def emit_selp(e: Emitter, i: Instruction) -> None:
    """selp d, a, b, p: a where p."""
    d, a, b, p = i.operands
    kind = i.type if i.type in ("f32", "f64") else _raw(i.type)
    x, y = e.read(a, kind), e.read(b, kind)
    e.write(d, f"np.where({e.read(p, 'pred')}, {x}, {y})[()]", kind)


@opcode("slct", counts_as="select")
def emit_slct(e: Emitter, i: Instruction) -> None:
    """slct d, a, b, c: a where c >= 0."""
    d, a, b, third = i.operands
    kinds = [m for m in i.modifiers if m in SIZES]
    sign = e.read(third, kinds[-1])
    zero = f"{name_of(kinds[-1])}(0)"
    kind = _raw(kinds[0])
    e.write(d, f"np.where({sign} >= {zero}, {e.read(a, kind)}, {e.read(b, kind)})[()]", kind)
