"""ld and st in every state space, scalars and vectors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from flashsmith.emulator.checks.bounds import refuse_misaligned
from flashsmith.emulator.checks.undefined import Undefined, any_undefined, marked
from flashsmith.emulator.machine import access
from flashsmith.emulator.machine.address_space import PARAM_WINDOW
from flashsmith.emulator.machine.emit import Emitter, name_of
from flashsmith.emulator.machine.opcode import Unknown, opcode
from flashsmith.emulator.machine.unit import Unit
from flashsmith.emulator.machine.values import Value
from flashsmith.emulator.ordering.clocks import at_flags
from flashsmith.emulator.ordering.traits import is_strong
from flashsmith.emulator.ptx.instruction import Address, Imm, Instruction, Operand, Symbol, Vector
from flashsmith.emulator.ptx.types import SIZES

if TYPE_CHECKING:
    from flashsmith.emulator.machine.chunk import Chunk

LINE_BYTES = 128  # of L2
SPACES = ("global", "shared", "local", "param", "const")


def space_of(i: Instruction) -> str:
    """The state space of an access; `generic` when the opcode names none."""
    for modifier in i.modifiers:
        space = modifier.split("::")[0]
        if space in SPACES:
            return "cluster" if modifier == "shared::cluster" else space
    return "generic"


def _items(operand: Operand) -> tuple[Operand, ...]:
    return operand.items if isinstance(operand, Vector) else (operand,)


def _address_word(space: str) -> str:
    return name_of("u32" if space in ("shared", "cluster") else "u64")


def emit_flags(e: Emitter, i: Instruction, mask: str, space: str, address: str) -> None:
    """Tells the clocks of a strong access to global memory."""
    if space in ("global", "generic"):
        sem = next((m for m in i.modifiers if m in ("acquire", "release", "acq_rel")), "relaxed")
        scope = next((m for m in i.modifiers if m in ("cta", "cluster", "gpu", "sys")), "gpu")
        e.do(f"{e.use(at_flags)}(c, u, {mask}, {address}, {sem!r}, {scope!r}, {i.opcode!r})")


@opcode(
    "ld", "ldu", counts_as="load", touches_memory=True,
    cuts=lambda i: "after" if is_strong(i) else "",
)  # fmt: skip
def emit_ld(e: Emitter, i: Instruction) -> None:
    """ld{.space}{.vec}.type d, [a]."""
    space = space_of(i)
    d, a = i.operands[:2]
    kind, items = i.type, _items(d)
    n_bytes = SIZES[kind] * len(items)
    if space == "param" and isinstance(a, Address) and isinstance(a.base, Symbol):
        _emit_param(e, a, items, kind)
        return
    with e.active() as mask:
        function = e.use(access.load)
        address = e.assign(e.address(a, space)) if is_strong(i) else e.address(a, space)
        word = _address_word(space)
        size = min(n_bytes, 16)
        parts = []
        for offset in range(0, n_bytes, 16):
            at = f"{address} + {word}({offset})" if offset else address
            parts.append(e.assign(f"{function}(c, u, {mask}, {space!r}, {at}, {size}, {e.index})"))
        if is_strong(i):
            e.do("u.yielded = True")
            emit_flags(e, i, mask, space, address)
        _write_parts(e, parts, items, kind)


def _write_parts(e: Emitter, parts: list[str], items: tuple[Operand, ...], kind: str) -> None:
    each = SIZES[kind]
    raw = f"u{8 * each}"
    if len(items) == 1:
        # Loads sign-extend or zero-extend into wider registers.
        value = parts[0] if name_of(raw) == name_of(kind) else f"{parts[0]}.view({name_of(kind)})"
        e.write(items[0], value, kind)
        return
    per_part = len(items) // len(parts)
    for number, part in enumerate(parts):
        rows = e.assign(f"{e.use(take_apart)}({part}, {name_of(raw)}, {per_part})")
        if name_of(raw) != name_of(kind):
            rows = e.assign(f"{rows}.view({name_of(kind)})")
        e.write_rows(items[number * per_part : (number + 1) * per_part], rows, kind)


def take_apart(cells: Value, dtype: type[np.generic], count: int) -> Value:
    """The `count` elements of each cell, an array each."""
    if np.ndim(cells) == 0:
        return np.asarray(cells).reshape(1).view(dtype)
    return np.ascontiguousarray(cells.view(dtype).reshape(-1, count).T)


def _emit_param(e: Emitter, a: Address, items: tuple[Operand, ...], kind: str) -> None:
    """Parameters are the same for all lanes: scalars."""
    assert isinstance(a.base, Symbol)
    if a.base.name not in e.symbols:
        raise Unknown(f"parameter {a.base.name}")
    offset = e.symbols[a.base.name][1] - PARAM_WINDOW + a.offset
    if offset < 0 or offset + SIZES[kind] * len(items) > e.kernel.param_bytes:
        raise Unknown(f"parameter bytes {offset} and up, there are {e.kernel.param_bytes}")
    for number, item in enumerate(items):
        at = offset + number * SIZES[kind]
        value = f"c.params[{at}:{at + SIZES[kind]}].view({name_of(kind)})[0]"
        e.write(item, value, kind)


@opcode("st", writes=0, counts_as="store", touches_memory=True)
def emit_st(e: Emitter, i: Instruction) -> None:
    """st{.space}{.vec}.type [a], b."""
    space = space_of(i)
    a, b = i.operands[:2]
    items = _items(b)
    raw = f"u{8 * SIZES[i.type]}"
    n_bytes = SIZES[i.type] * len(items)
    with e.active() as mask:
        function = e.use(access.store)
        address = e.address(a, space)
        word = _address_word(space)
        per_part = max(1, len(items) * min(n_bytes, 16) // n_bytes)
        for number in range(0, len(items), per_part):
            values = [e.read(item, raw) for item in items[number : number + per_part]]
            value = (
                values[0] if len(values) == 1 else f"{e.use(put_together)}(u, {', '.join(values)})"
            )
            offset = number * SIZES[i.type]
            at = f"{address} + {word}({offset})" if offset else address
            e.do(
                f"{function}(c, u, {mask}, {space!r}, {at}, {value}, {min(n_bytes, 16)}, {e.index})"
            )
        if is_strong(i):
            emit_flags(e, i, mask, space, address)


@opcode("discard", writes=0, counts_as="store", touches_memory=True)
def emit_discard(e: Emitter, i: Instruction) -> None:
    """discard.global.L2 [a], 128: what lies there is lost; here all of its bits become 1, a NaN."""
    a, size = i.operands
    if space_of(i) != "global" or not isinstance(size, Imm) or size.value != LINE_BYTES:
        raise Unknown("discard of other than 128 bytes of global memory")
    lost = e.value("K_lost", np.uint64(2**64 - 1))
    with e.active() as mask:
        address = e.assign(e.address(a, "global"))
        e.do(f"{e.use(require_line)}(c, u, {mask}, {address}, {e.index})")
        for offset in range(0, LINE_BYTES, 8):
            at = f"{address} + {_address_word('global')}({offset})"
            e.do(f"{e.use(access.store)}(c, u, {mask}, 'global', {at}, {lost}, 8, {e.index})")


def require_line(c: Chunk, u: Unit, m: access.Mask, address: Value, index: int) -> None:
    """Faults where an address is not that of a whole line; the stores look at all else."""
    if isinstance(address, Undefined):
        return
    lanes = None if m is None else np.flatnonzero(m)
    places = u.array(address) if lanes is None else u.array(address)[lanes]
    if c.options.checks and int(np.bitwise_or.reduce(places, initial=0)) % LINE_BYTES:
        refuse_misaligned(c, u, lanes, places, LINE_BYTES, index)


def put_together(u: Unit, *parts: Value) -> Value:
    """Elements of each lane as one cell of 2, 4, 8 or 16 bytes."""
    lanes = 32 * u.pairs
    out = np.empty((lanes, len(parts)), parts[0].dtype)
    for number, part in enumerate(parts):
        out[:, number] = part
    cells = out.view(access.UINT[out.itemsize * len(parts)])[:, 0]
    if any(isinstance(part, Undefined) for part in parts):
        return marked(cells, any_undefined(parts, lanes))
    return cells
