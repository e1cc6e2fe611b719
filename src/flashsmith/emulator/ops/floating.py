"""Floating-point arithmetic in f32, f64, and packed or single 16-bit formats."""

from __future__ import annotations

from flashsmith.emulator.machine import numerics
from flashsmith.emulator.machine.emit import Emitter, name_of
from flashsmith.emulator.machine.opcode import Unknown, opcode
from flashsmith.emulator.ptx.instruction import Imm, Instruction, Operand

TYPES = frozenset({"f32", "f64", "f16", "bf16", "f16x2", "bf16x2", "f32x2"})
_SYMBOL = {"add": "+", "sub": "-", "mul": "*"}


def _check_rounding(i: Instruction) -> None:
    for mode in ("rz", "rm", "rp"):
        if i.has(mode):
            raise Unknown(f"rounding .{mode} of {i.opcode}")


def _emit_directed(e: Emitter, i: Instruction) -> bool:
    """Writes an f32 operation that rounds towards zero, down or up; False if it does not."""
    mode = next((m for m in ("rz", "rm", "rp") if i.has(m)), None)
    if mode is None or i.type != "f32":
        _check_rounding(i)
        return False
    sources = ", ".join(_source(e, i, operand) for operand in i.operands[1:])
    operation = "fma" if i.opcode == "mad" else i.opcode
    function = e.use(numerics.directed32)
    e.write(i.operands[0], _result(e, i, f"{function}({operation!r}, {mode!r}, {sources})"), "f32")
    return True


def _source(e: Emitter, i: Instruction, operand: Operand) -> str:
    value = e.read(operand, i.type)
    return f"{e.use(numerics.flush)}({value})" if i.has("ftz") and i.type == "f32" else value


def _result(e: Emitter, i: Instruction, expression: str) -> str:
    if i.has("sat"):
        expression = f"{e.use(numerics.saturate)}({expression})"
    if i.has("ftz") and i.type == "f32":
        expression = f"{e.use(numerics.flush)}({expression})"
    return expression


def emit_binary(e: Emitter, i: Instruction) -> None:
    """add, sub, mul: IEEE, to nearest even unless the opcode says otherwise."""
    if _emit_directed(e, i):
        return
    d, a, b = i.operands
    if i.type in ("f32", "f64"):
        x, y = _source(e, i, a), _source(e, i, b)
        e.write(d, _result(e, i, f"{x} {_SYMBOL[i.opcode]} {y}"), i.type)
        return
    if i.type == "f32x2":
        function = e.use(numerics.pair_operation)
        e.write(
            d, f"{function}({_SYMBOL[i.opcode]!r}, {e.read(a, 'u64')}, {e.read(b, 'u64')})", "u64"
        )
        return
    _emit_half(e, i, (a, b), i.opcode)


def _emit_half(e: Emitter, i: Instruction, sources: tuple[Operand, ...], operation: str) -> None:
    """16-bit formats: computed in f64, rounded once."""
    kind = "u32" if i.type.endswith("x2") else "u16"
    function = e.use(numerics.half_operation)
    arguments = ", ".join(e.read(source, kind) for source in sources)
    flags = tuple(m for m in i.modifiers if m in ("sat", "relu", "ftz", "NaN"))
    e.write(
        i.operands[0],
        f"{function}({operation!r}, {i.type.startswith('bf16')}, {flags!r}, {arguments})",
        kind,
    )


@opcode("fma", counts_as="arithmetic")
def emit_fma(e: Emitter, i: Instruction) -> None:
    """fma: one rounding."""
    if _emit_directed(e, i):
        return
    d, a, b, addend = i.operands
    if i.type == "f32x2":
        arguments = ", ".join(e.read(x, "u64") for x in (a, b, addend))
        e.write(d, f"{e.use(numerics.pair_fma)}({arguments})", "u64")
        return
    if i.type not in ("f32", "f64"):
        _emit_half(e, i, (a, b, addend), "fma")
        return
    function = e.use(numerics.fma32 if i.type == "f32" else numerics.fma64)
    arguments = ", ".join(_source(e, i, x) for x in (a, b, addend))
    e.write(d, _result(e, i, f"{function}({arguments})"), i.type)


def emit_division(e: Emitter, i: Instruction) -> None:
    """div.rn is exact; div.full and div.approx are given the exact quotient too."""
    d, a, b = i.operands
    _check_rounding(i)
    e.write(d, _result(e, i, f"{_source(e, i, a)} / {_source(e, i, b)}"), i.type)


def emit_extreme(e: Emitter, i: Instruction) -> None:
    """min, max: NaN loses against a number, or wins with `.NaN`; `.xorsign.abs` as in the ISA."""
    sources = i.operands[1:]
    if i.type not in ("f32", "f64"):
        _emit_half(e, i, sources, i.opcode)
        return
    values = [_source(e, i, source) for source in sources]
    if i.has("xorsign"):
        function = e.use(numerics.extreme_xorsign)
        e.write(
            i.operands[0], f"{function}({i.opcode!r}, {i.has('NaN')}, {', '.join(values)})", i.type
        )
        return
    if i.has("NaN"):
        function = e.use(numerics.minimum_nan if i.opcode == "min" else numerics.maximum_nan)
    else:
        function = e.use(numerics.minimum if i.opcode == "min" else numerics.maximum)
    expression = values[0]
    for value in values[1:]:
        expression = f"{function}({expression}, {value})"
    if i.has("abs"):
        expression = f"np.abs({expression})"
    e.write(i.operands[0], expression, i.type)


def emit_sign(e: Emitter, i: Instruction) -> None:
    """abs, neg: the sign bit alone."""
    d, a = i.operands
    kind = {"f32": "u32", "f64": "u64", "f16": "u16", "bf16": "u16"}.get(i.type, "u32")
    sign = {"u16": 1 << 15, "u64": 1 << 63, "u32": 1 << 31}[kind]
    if i.type.endswith("x2"):
        sign = 0x80008000
    flushed = i.type == "f32" and i.has("ftz")
    value = f"{_source(e, i, a)}.view(U32)" if flushed else e.read(a, kind)
    operator = (
        f"& {e.constant(Imm(~sign), kind)}"
        if i.opcode == "abs"
        else f"^ {e.constant(Imm(sign), kind)}"
    )
    e.write(d, f"{value} {operator}", kind)


@opcode("copysign", counts_as="arithmetic")
def emit_copysign(e: Emitter, i: Instruction) -> None:
    """copysign d, a, b: the value of b with the sign of a."""
    d, a, b = i.operands
    e.write(d, f"np.copysign({e.read(b, i.type)}, {e.read(a, i.type)})", i.type)


@opcode("ex2", "lg2", "rcp", "sqrt", "rsqrt", "sin", "cos", "tanh", counts_as="special function")
def emit_function(e: Emitter, i: Instruction) -> None:
    """Special functions: rounded correctly for .rn, within a step of that for .approx."""
    d, a = i.operands
    _check_rounding(i)
    if i.type not in ("f32", "f64"):
        if i.opcode not in ("ex2", "tanh"):
            raise Unknown(f"{i.opcode} of {i.type}")
        _emit_half(e, i, (a,), i.opcode)
        return
    function = e.use(numerics.FUNCTIONS[i.opcode])
    value = f"{function}({_source(e, i, a)})"
    if name_of(i.type) == "F64" and i.opcode not in ("rcp", "sqrt", "rsqrt"):
        raise Unknown(f"{i.opcode} of f64")
    e.write(d, _result(e, i, value), i.type)


@opcode("testp", counts_as="compare")
def emit_testp(e: Emitter, i: Instruction) -> None:
    """testp: the class of a number."""
    d, a = i.operands
    value = e.assign(e.read(a, i.type))
    least = "1.1754943508222875e-38" if i.type == "f32" else "2.2250738585072014e-308"
    tiny = f"{name_of(i.type)}({least})"
    tests = {
        "finite": f"np.isfinite({value})",
        "infinite": f"np.isinf({value})",
        "number": f"~np.isnan({value})",
        "notanumber": f"np.isnan({value})",
        "normal": f"np.isfinite({value}) & (np.abs({value}) >= {tiny})",
        "subnormal": f"({value} != 0) & (np.abs({value}) < {tiny})",
    }
    e.write(d, tests[i.modifiers[0]], "pred")
