"""cvt: between integer and floating-point types, with the rounding asked for."""

from __future__ import annotations

import numpy as np

from flashsmith.emulator.checks.undefined import spreads
from flashsmith.emulator.machine import numerics
from flashsmith.emulator.machine.emit import NUMPY, Emitter, name_of
from flashsmith.emulator.machine.opcode import Unknown, opcode
from flashsmith.emulator.machine.values import Value
from flashsmith.emulator.ptx.instruction import Instruction
from flashsmith.emulator.ptx.types import SIZES

_FLOATS = ("f16", "bf16", "f32", "f64")
_ROUND = {
    "rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil,
}  # fmt: skip


@opcode("cvt", counts_as="convert")
def emit_cvt(e: Emitter, i: Instruction) -> None:
    """cvt{.rounding}{.ftz}{.sat}.to.from d, a{, b}."""
    kinds = [m for m in i.modifiers if m in SIZES]
    if len(kinds) != 2:
        raise Unknown("types of this conversion")
    to, source = kinds
    if i.has("pack"):
        raise Unknown("cvt.pack")
    if to in ("f16x2", "bf16x2"):
        _emit_pack(e, i, to, source)
    elif to in _FLOATS and source in _FLOATS:
        _emit_float_to_float(e, i, to, source)
    elif to in _FLOATS:
        value = e.read(i.operands[1], source)
        _write_float(e, i, f"{value}.astype(F64)" if to != "f32" else value, to, source)
    elif source in _FLOATS:
        _emit_float_to_integer(e, i, to, source)
    else:
        _emit_integer(e, i, to, source)


def _emit_pack(e: Emitter, i: Instruction, to: str, source: str) -> None:
    if source != "f32" or not i.has("rn"):
        raise Unknown("packing from this type, or with a rounding other than .rn")
    d, high, low = i.operands
    x, y = e.read(high, "f32"), e.read(low, "f32")
    if i.has("ftz"):
        x, y = f"{e.use(numerics.flush)}({x})", f"{e.use(numerics.flush)}({y})"
    if i.has("relu"):
        x, y = f"np.fmax({x}, F32(0))", f"np.fmax({y}, F32(0))"
    e.write(d, f"{e.use(numerics.pack_half)}({x}, {y}, {to == 'bf16x2'})", "u32")


def _read_float(e: Emitter, i: Instruction, kind: str) -> str:
    if kind in ("f16", "bf16"):
        return f"{e.use(numerics.from_half)}({e.read(i.operands[1], 'u16')}, {kind == 'bf16'})"
    value = e.read(i.operands[1], kind)
    return f"{e.use(numerics.flush)}({value})" if i.has("ftz") and kind == "f32" else value


def _emit_float_to_float(e: Emitter, i: Instruction, to: str, source: str) -> None:
    value = _read_float(e, i, source)
    for name, function in _ROUND.items():
        if i.has(name):
            value = f"np.{function.__name__}({value})"
    _write_float(e, i, value, to, source)


def _write_float(e: Emitter, i: Instruction, value: str, to: str, source: str) -> None:
    mode = next((m for m in ("rz", "rm", "rp") if i.has(m)), None)
    if mode is not None and to != "f64" and source not in ("f16", "bf16"):
        kind = "u16" if to in ("f16", "bf16") else to
        e.write(i.operands[0], f"{e.use(directed)}({value}, {to!r}, {mode!r})", kind)
        return
    if i.has("relu"):
        value = f"np.fmax({value}, F32(0))"
    if i.has("sat"):
        value = f"{e.use(numerics.saturate)}({value})"
    if to in ("f16", "bf16"):
        e.write(i.operands[0], f"{e.use(numerics.to_half)}({value}, {to == 'bf16'})", "u16")
        return
    if to != source:
        value = f"({value}).astype({name_of(to)})"
    if i.has("ftz") and to == "f32":
        value = f"{e.use(numerics.flush)}({value})"
    e.write(i.operands[0], value, to)


@spreads
def directed(x: Value, to: str, mode: str) -> Value:
    """Rounding towards zero (rz), down (rm) or up (rp)."""
    exact = np.asarray(x).astype(np.float64) if x.dtype.kind == "f" else x
    bf16 = to == "bf16"
    half = to in ("f16", "bf16")
    bits = (
        numerics.to_half(exact, bf16)
        if half
        else np.asarray(exact).astype(np.float32).view(np.uint32)
    )
    value = numerics.from_half(bits, bf16) if half else bits.view(np.float32)
    if x.dtype.kind == "f":
        above, below = value.astype(np.float64) > exact, value.astype(np.float64) < exact
    else:
        whole = value.astype(np.longdouble)
        above, below = whole > exact.astype(np.longdouble), whole < exact.astype(np.longdouble)
    negative = np.signbit(value)
    down = above & (~negative if mode == "rz" else mode == "rm")
    up = below & (negative if mode == "rz" else mode == "rp")
    one = bits.dtype.type(1)
    # The next pattern below is one less for positive numbers and one more for negative ones.
    out = np.where(down, np.where(negative, bits + one, bits - one), bits)
    out = np.where(up, np.where(negative, bits - one, bits + one), out).astype(bits.dtype)
    return (out if half else out.view(np.float32))[()]


def _emit_float_to_integer(e: Emitter, i: Instruction, to: str, source: str) -> None:
    mode = next((m for m in _ROUND if i.has(m)), None)
    if mode is None:
        raise Unknown("an integer rounding (.rni, .rzi, .rmi, .rpi) is needed")
    value = _read_float(e, i, source)
    e.write(i.operands[0], f"{e.use(to_integer)}({value}, {mode!r}, {to!r})", to)


@spreads
def to_integer(x: Value, mode: str, to: str) -> Value:
    """Rounded and clamped to the integer type; NaN gives 0 (the top bit alone for 64 bits)."""
    whole = _ROUND[mode](np.asarray(x).astype(np.float64))
    limits = np.iinfo(NUMPY[to])
    low, high = float(limits.min), float(limits.max)
    inside = np.clip(whole, low, np.nextafter(high + 1.0, 0.0) if SIZES[to] == 8 else high)
    out = np.where(np.isnan(whole), 0.0, inside).astype(NUMPY[to])
    if SIZES[to] == 8:
        out = np.where(whole >= high, NUMPY[to](limits.max), out)
        out = np.where(np.isnan(whole), np.uint64(1 << 63).astype(NUMPY[to]), out)
    return out[()]


def _emit_integer(e: Emitter, i: Instruction, to: str, source: str) -> None:
    value = e.read(i.operands[1], source)
    if i.has("sat"):
        value = f"{e.use(clamp)}({value}, {to!r})"
        e.write(i.operands[0], value, to)
        return
    if name_of(to) != name_of(source):
        same_size = SIZES[to] == SIZES[source]
        value = f"{value}.{'view' if same_size else 'astype'}({name_of(to)})"
    e.write(i.operands[0], value, to)


def clamp(x: Value, to: str) -> Value:
    """cvt.sat of integers."""
    limits, own = np.iinfo(NUMPY[to]), np.iinfo(x.dtype)
    low, high = max(limits.min, own.min), min(limits.max, own.max)
    return np.clip(x, x.dtype.type(low), x.dtype.type(high)).astype(NUMPY[to])
