"""Moves: mov with packing and unpacking, and addresses between state spaces."""

from __future__ import annotations

import numpy as np

from flashsmith.emulator.machine.address_space import LOCAL_WINDOW, SHARED_WINDOW
from flashsmith.emulator.machine.emit import Emitter, name_of
from flashsmith.emulator.machine.opcode import Unknown, opcode
from flashsmith.emulator.ptx.instruction import Imm, Instruction, Operand, Reg, Symbol, Vector
from flashsmith.emulator.ptx.types import SIZES

_WINDOW = {"shared": SHARED_WINDOW, "local": LOCAL_WINDOW}


@opcode("mov", counts_as="move")
def emit_mov(e: Emitter, i: Instruction) -> None:
    """mov; `mov.b64 {lo, hi}, a` and `mov.b64 d, {lo, hi}` take registers apart and together."""
    d, a = i.operands
    if isinstance(d, Vector):
        part = 8 * SIZES[i.type] // len(d.items)
        whole = e.assign(e.read(a, f"u{8 * SIZES[i.type]}"))
        for number, item in enumerate(d.items):
            shift = e.constant(Imm(part * number), i.type)
            shifted = f"({whole} >> {shift})" if number else whole
            e.write(item, f"{shifted}.astype({name_of(f'u{part}')})", f"u{part}")
        return
    if isinstance(a, Vector):
        wide, part = f"u{8 * SIZES[i.type]}", 8 * SIZES[i.type] // len(a.items)
        terms = []
        for number, item in enumerate(a.items):
            moved = f"{e.read(item, f'u{part}')}.astype({name_of(wide)})"
            terms.append(
                f"({moved} << {e.constant(Imm(part * number), wide)})" if number else moved
            )
        e.write(d, " | ".join(terms), wide)
        return
    kind = "pred" if i.type == "pred" else _held_kind(e, i, d)
    if isinstance(a, Imm) and kind in ("f32", "f64") and not a.float_bits:
        bits = 8 * SIZES[kind]  # an integer's bits, not its value, go into a register kept as float
        a = Imm(a.value & (1 << bits) - 1, bits)
    if isinstance(a, Symbol) and kind in ("f32", "f64"):
        kind = f"u{8 * SIZES[kind]}"  # an address is an integer, wherever it is kept
    e.write(d, e.read(a, kind), kind)


def _held_kind(e: Emitter, i: Instruction, d: Operand) -> str:
    """The type the destination is kept in, if it has the size of the move: no view needed."""
    if isinstance(d, Reg) and SIZES[e.storage[d.number]] == SIZES[i.type]:
        return e.storage[d.number]
    return f"u{8 * SIZES[i.type]}"


@opcode("cvta", counts_as="move")
def emit_cvta(e: Emitter, i: Instruction) -> None:
    """cvta: between an address in a state space and the generic address."""
    d, a = i.operands
    space = next((m.split("::")[0] for m in i.modifiers if m not in ("to", i.type)), "global")
    kind = f"u{8 * SIZES[i.type]}"
    value = e.read(a, kind)
    if space not in _WINDOW:  # global, const and param addresses are generic ones already
        e.write(d, value, kind)
        return
    window = e.constant(Imm(_WINDOW[space]), kind)
    e.write(d, f"{value} {'-' if i.has('to') else '+'} {window}", kind)


@opcode("isspacep", counts_as="compare")
def emit_isspacep(e: Emitter, i: Instruction) -> None:
    """isspacep.space p, a: whether a generic address lies in a state space."""
    p, a = i.operands
    space = i.modifiers[0].split("::")[0]
    value = f"({e.read(a, 'u64')} >> U64(40))"
    if space in _WINDOW:
        e.write(p, f"{value} == U64({_WINDOW[space] >> 40})", "pred")
    elif space == "global":
        e.write(p, f"{value} < U64({0x7C00_0000_0000 >> 40})", "pred")
    else:
        raise Unknown(f"space .{space}")


@opcode("nanosleep", writes=0, counts_as="control", cuts="after")
def emit_nanosleep(e: Emitter, i: Instruction) -> None:
    """nanosleep: lets the other warps run first."""
    e.do("u.yielded = True")


@opcode(
    "prefetch", "prefetchu", "applypriority", "griddepcontrol",
    writes=0, counts_as="control",
)  # fmt: skip
def emit_nothing(e: Emitter, i: Instruction) -> None:
    """Hints to caches and to the launch of the next kernel: no effect on values."""


@opcode("pmevent", "brkpt", writes=0, counts_as="control")
def emit_event(e: Emitter, i: Instruction) -> None:
    """Marks for profilers and debuggers: no effect."""


@opcode("createpolicy", counts_as="move")
def emit_createpolicy(e: Emitter, i: Instruction) -> None:
    """An L2 eviction policy: any value, for nothing reads it."""
    e.write(i.operands[0], e.value("K_policy", np.uint64(0)), "u64")
