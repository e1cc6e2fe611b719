"""Branches and ends: where a warp goes next."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

import numpy as np

from flashsmith.emulator.machine.emit import Emitter
from flashsmith.emulator.machine.opcode import Unknown, opcode
from flashsmith.emulator.machine.scheduler import branch
from flashsmith.emulator.machine.segments import EXIT, FORKED
from flashsmith.emulator.machine.unit import Unit
from flashsmith.emulator.machine.values import Value
from flashsmith.emulator.ptx.instruction import Instruction, Symbol

if TYPE_CHECKING:
    from flashsmith.emulator.machine.chunk import Chunk


def _fall(e: Emitter) -> int:
    assert e.segment is not None
    successors = e.segment.successors
    return successors[-1] if successors else EXIT


def _go(e: Emitter, target: int) -> None:
    if e.guard is None:
        e.do(f"return {target}")
    else:
        e.do(f"return {e.use(branch)}(u, {e.guard_text}, {target}, {_fall(e)}, c, {e.index})")


@opcode("bra", writes=0, counts_as="control")
def emit_bra(e: Emitter, i: Instruction) -> None:
    """`@p bra $L`: lanes that go different ways become units of their own."""
    label = i.operands[0]
    assert e.segment is not None
    if not isinstance(label, Symbol):
        raise Unknown(f"target {label}")
    _go(e, e.segment.targets[label.name])


@opcode("brx", writes=0, counts_as="control")
def emit_brx(e: Emitter, i: Instruction) -> None:
    """`brx.idx r, table`: a jump by number."""
    assert e.segment is not None
    if i.guard is not None or not i.has("idx"):
        raise Unknown("only an unguarded brx.idx")
    value = e.read(i.operands[0], "u32")
    e.do(f"return {e.use(jump)}(u, {value}, {e.segment.successors!r}, c, {e.index})")


@opcode("ret", "exit", writes=0, counts_as="control")
def emit_exit(e: Emitter, i: Instruction) -> None:
    """The warp, or its guarded lanes, end."""
    _go(e, EXIT)


@opcode("trap", writes=0, counts_as="control")
def emit_trap(e: Emitter, i: Instruction) -> None:
    """A fault that the kernel raises itself."""
    with e.active() as mask:
        e.do(f"{e.use(trapped)}(c, u, {mask}, {e.index})")
    e.do(f"return {_fall(e)}")


def trapped(c: Chunk, u: Unit, m: Value, index: int) -> NoReturn:
    """Raises the fault of a trap."""
    lane = 0 if m is None else int(np.flatnonzero(m)[0])
    c.fault("trap", "the kernel stopped itself", index, u, lane=lane)


def jump(u: Unit, value: Value, targets: tuple[int, ...], c: Chunk, index: int) -> int:
    """The next segment after a jump by number."""
    if value.ndim == 0:
        if int(value) >= len(targets):
            c.fault("bad branch", f"index {int(value)} of {len(targets)} targets", index, u)
        return targets[int(value)]
    active = np.ones(value.size, np.bool_) if u.mask is None else u.mask
    for number in np.unique(value[active]):
        if int(number) >= len(targets):
            c.fault("bad branch", f"index {int(number)} of {len(targets)} targets", index, u)
        to = targets[int(number)]
        part = u.fork(active & (value == number), to, c.live[to] if to >= 0 else ())
        assert part is not None
        c.forks.append(part)
    return FORKED
