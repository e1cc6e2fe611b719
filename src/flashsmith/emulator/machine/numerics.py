"""Floating-point operations on lanes, with the rounding that PTX asks for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flashsmith.emulator.checks.undefined import spreads
from flashsmith.emulator.machine.values import Value

F32, F64, U16, U32, U64 = np.float32, np.float64, np.uint16, np.uint32, np.uint64
TINY = F32(2.0**-126)  # least normal f32
_NAN32 = U32(0x7FFFFFFF)  # the NaN that PTX operations give


def flush(x: Value) -> Value:
    """Subnormal numbers become zero of the same sign (.ftz)."""
    out: Value = np.where(np.abs(x) < TINY, np.copysign(F32(0), x), x)
    return out[()]


def saturate(x: Value) -> Value:
    """Clamped to 0…1, NaN to 0 (.sat)."""
    one, zero = x.dtype.type(1), x.dtype.type(0)
    return np.where(np.isnan(x), zero, np.minimum(np.maximum(x, zero), one))[()]


def fma32(a: Value, b: Value, addend: Value) -> Value:
    """a * b + addend, rounded once: the product is exact in f64, the sum is rounded to odd."""
    product = a.astype(F64) * b
    total = product + addend
    # Rounding twice is wrong only if the f64 sum is inexact and lies half-way between two f32.
    halfway = (total.view(U64) & U64(0x1FFFFFFF)) == U64(0x10000000)
    if np.count_nonzero(halfway):  # np.any takes four times as long
        total = _round_to_odd(product, addend, total)
    return total.astype(F32)


@spreads
def directed32(operation: str, mode: str, *sources: Value) -> Value:
    """add, sub, mul or fma of f32, rounded towards zero (rz), down (rm) or up (rp)."""
    wide = [np.asarray(x).astype(F64) for x in sources]
    if operation in ("mul", "fma"):
        wide[:2] = [wide[0] * wide[1]]  # exact
    if len(wide) == 1:
        total, error = wide[0], np.zeros_like(wide[0])
    else:
        first, second = wide[0], -wide[1] if operation == "sub" else wide[1]
        total = first + second
        part = total - first
        error = (first - (total - part)) + (second - part)
    near = total.astype(F32)
    beyond = np.where(near == total, -error, near - total)  # sign of nearest minus exact
    down = (beyond > 0) & ((near > 0) if mode == "rz" else mode == "rm")
    up = (beyond < 0) & ((near < 0) if mode == "rz" else mode == "rp")
    out = np.where(down, np.nextafter(near, F32(-np.inf)), near)
    return np.where(up, np.nextafter(near, F32(np.inf)), out)[()]


def _round_to_odd(product: Value, addend: Value, total: Value) -> Value:
    """The f64 sum with its last bit set to say that something was cut off."""
    part = total - product
    error = (product - (total - part)) + (addend - part)
    bits = total.view(U64)
    inexact = (error != 0) & np.isfinite(total) & (bits & U64(1) == 0)
    towards = np.where((error > 0) == (total > 0), bits + U64(1), bits - U64(1))
    return np.where(inexact, towards, bits).view(F64)


@spreads
def fma64(a: Value, b: Value, addend: Value) -> Value:
    """f64 fma through extended precision (80 bits where the platform has them)."""
    wide = np.asarray(a).astype(np.longdouble) * b + addend
    return wide.astype(F64)[()]


@spreads
def pair_operation(symbol: str, a: Value, b: Value) -> Value:
    """add, sub, mul of two f32 in 64 bits."""
    x, y = _pair(a), _pair(b)
    out = x + y if symbol == "+" else x - y if symbol == "-" else x * y
    return _unpair(out)


@spreads
def pair_fma(a: Value, b: Value, addend: Value) -> Value:
    """fma of two f32 in 64 bits."""
    return _unpair(fma32(_pair(a), _pair(b), _pair(addend)))


def _pair(x: Value) -> NDArray[Any]:
    return np.ascontiguousarray(x).reshape(-1, 1).view(F32)


def _unpair(x: NDArray[Any]) -> Value:
    out = np.ascontiguousarray(x).view(U64).reshape(-1)
    return out[0] if out.size == 1 else out


# -- min and max -------------------------------------------------------------------------------


def minimum(a: Value, b: Value) -> Value:
    """The number if the other is NaN; -0 is less than +0."""
    out = np.fmin(a, b)
    return out if _has_no_zero(out) else _with_zero_sign(out, a, b, np.logical_or)


def maximum(a: Value, b: Value) -> Value:
    """The number if the other is NaN; -0 is less than +0."""
    out = np.fmax(a, b)
    return out if _has_no_zero(out) else _with_zero_sign(out, a, b, np.logical_and)


def _has_no_zero(x: Value) -> bool:
    return bool(np.count_nonzero(x) == x.size)


def _with_zero_sign(out: Value, a: Value, b: Value, combine: np.ufunc) -> Value:
    """Where both are zero: minus if either is (min), or both are (max)."""
    minus = combine(np.signbit(a), np.signbit(b))
    zero = np.where(minus, out.dtype.type(-0.0), out.dtype.type(0.0))
    return np.where((a == 0) & (b == 0), zero, out)[()]


def minimum_nan(a: Value, b: Value) -> Value:
    """NaN if either is."""
    return _canonical(np.minimum(a, b))


def maximum_nan(a: Value, b: Value) -> Value:
    """NaN if either is."""
    return _canonical(np.maximum(a, b))


def _canonical(x: Value) -> Value:
    if x.dtype != F32 or not np.isnan(x).any():
        return x
    return np.where(np.isnan(x), _NAN32, x.view(U32)).astype(U32)[()].view(F32)


def extreme_xorsign(operation: str, keep_nan: bool, a: Value, b: Value) -> Value:
    """min or max of magnitudes, with the exclusive or of the signs."""
    size, other = np.abs(a), np.abs(b)
    if operation == "max":
        out = maximum_nan(size, other) if keep_nan else maximum(size, other)
    else:
        out = minimum_nan(size, other) if keep_nan else minimum(size, other)
    negative = np.signbit(a) ^ np.signbit(b)
    return np.where(negative, -out, out)[()]


# -- special functions -------------------------------------------------------------------------


def _by_f64(function: Callable[[Value], Value]) -> Callable[[Value], Value]:
    """A function of f32 computed in f64 and rounded: within half a step of the truth."""

    def apply(x: Value) -> Value:
        return function(x.astype(F64)).astype(x.dtype)

    apply.__qualname__ = apply.__name__ = f"by_f64_{function.__name__}"
    return apply


def reciprocal(x: Value) -> Value:
    """1 / x."""
    return x.dtype.type(1) / x


def reciprocal_root(x: Value) -> Value:
    """1 / sqrt(x)."""
    return (1.0 / np.sqrt(x.astype(F64))).astype(x.dtype)


FUNCTIONS: dict[str, Callable[[Value], Value]] = {
    "ex2": np.exp2,
    "lg2": _by_f64(np.log2),
    "rcp": reciprocal,
    "sqrt": np.sqrt,
    "rsqrt": reciprocal_root,
    "sin": _by_f64(np.sin),
    "cos": _by_f64(np.cos),
    "tanh": _by_f64(np.tanh),
}


# -- 16-bit formats ----------------------------------------------------------------------------


def from_half(bits: Value, bf16: bool) -> Value:
    """Numbers of 16-bit patterns, as f32."""
    if bf16:
        return (bits.astype(U32) << U32(16)).view(F32)
    return bits.view(np.float16).astype(F32)


@spreads
def to_half(x: Value, bf16: bool) -> Value:
    """f32 or f64 rounded once to 16 bits, to nearest even; NaN becomes 0x7FFF."""
    if not bf16:
        bits = np.asarray(x).astype(np.float16).view(U16)
        nan = np.isnan(x)
        return np.where(nan, U16(0x7FFF), bits)[()] if np.count_nonzero(nan) else bits[()]
    return _to_bf16(x if x.dtype == F32 else _f32_to_odd(x)).astype(U16)


def _to_bf16(single: Value) -> Value:
    """The bits of f32 rounded to bf16, as u32."""
    bits = single.view(U32)
    rounded = (bits + (U32(0x7FFF) + ((bits >> U32(16)) & U32(1)))) >> U32(16)
    nan = np.isnan(single)
    return np.where(nan, U32(0x7FFF), rounded) if np.count_nonzero(nan) else rounded


def _f32_to_odd(x: Value) -> Value:
    """f64 → f32 with the last bit set when something is cut off, so that bf16 rounds once."""
    x = np.asarray(x)
    near = x.astype(F32)
    bits = near.view(U32)
    inexact = np.isfinite(near) & (near.astype(F64) != x) & (bits & U32(1) == 0)
    grows = np.abs(near.astype(F64)) < np.abs(x)
    return np.where(inexact, np.where(grows, bits + U32(1), bits - U32(1)), bits).view(F32)


@spreads
def pack_half(high: Value, low: Value, bf16: bool) -> Value:
    """cvt.rn.{f16x2,bf16x2}.f32 d, high, low."""
    if bf16:
        return _to_bf16(low) | (_to_bf16(high) << U32(16))
    count = max(np.size(high), np.size(low))
    out = np.empty((count, 2), np.float16)
    out[:, 0], out[:, 1] = low, high
    if np.count_nonzero(np.isnan(out)):
        bits = out.view(U16)
        bits[np.isnan(out)] = 0x7FFF
    packed = out.view(U32)[:, 0]
    return packed if np.ndim(high) or np.ndim(low) else packed[0]


@spreads
def half_operation(operation: str, bf16: bool, flags: tuple[str, ...], *sources: Value) -> Value:
    """An operation on 16-bit numbers, single (u16) or packed (u32): in f64, rounded once."""
    width = sources[0].dtype
    lanes = np.broadcast_arrays(*sources)
    values = [
        from_half(np.ascontiguousarray(x).reshape(-1).view(U16), bf16).astype(F64) for x in lanes
    ]
    out = to_half(_HALF[operation](flags, *values), bf16)
    if "relu" in flags:
        out = np.where((out & U16(0x8000)) != 0, U16(0), out)
    if "sat" in flags:
        out = to_half(saturate(from_half(out, bf16)), bf16)
    packed = np.ascontiguousarray(out).view(width)
    return packed if lanes[0].ndim else packed[0]


_HALF: dict[str, Callable[..., Value]] = {
    "add": lambda flags, a, b: a + b,
    "sub": lambda flags, a, b: a - b,
    "mul": lambda flags, a, b: a * b,
    "fma": lambda flags, a, b, addend: a * b + addend,
    "min": lambda flags, a, b: np.minimum(a, b) if "NaN" in flags else np.fmin(a, b),
    "max": lambda flags, a, b: np.maximum(a, b) if "NaN" in flags else np.fmax(a, b),
    "ex2": lambda flags, a: np.exp2(a),
    "tanh": lambda flags, a: np.tanh(a),
}
