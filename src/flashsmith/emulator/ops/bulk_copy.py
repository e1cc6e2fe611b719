"""Bulk copies: TMA loads and stores of tensor boxes, plain runs of bytes, and reductions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flashsmith.emulator.copies.bulk_loads import start_load
from flashsmith.emulator.copies.bulk_stores import commit_stores, start_store, wait_for_stores
from flashsmith.emulator.copies.transfers import OPERATIONS, TYPES
from flashsmith.emulator.machine.opcode import Unknown
from flashsmith.emulator.ptx.instruction import Address, Group, Imm, Instruction, Operand, Vector

if TYPE_CHECKING:
    from flashsmith.emulator.machine.emit import Emitter


def cuts(i: Instruction) -> str:
    """A wait ends its segment."""
    return "after" if i.has("wait_group") else ""


def group_count(i: Instruction, most: int = 1 << 31) -> int:
    """How many of the newest groups a wait lets go on."""
    count = i.operands[0]
    if not isinstance(count, Imm) or not 0 <= count.value <= most:
        raise Unknown(f"the count of groups is a constant from 0 to {most}")
    return count.value


def translate(e: Emitter, i: Instruction) -> None:
    """Translates cp.async.bulk and cp.reduce.async.bulk in all their forms."""
    if i.has("prefetch"):
        return
    if i.has("commit_group"):
        with e.active() as mask:
            e.do(f"{e.use(commit_stores)}(c, u, {mask})")
    elif i.has("wait_group"):
        count = group_count(i)
        with e.active() as mask:
            e.do(
                f"{e.use(wait_for_stores)}(c, u, {mask}, {count}, {e.index}, "
                f"reads_only={i.has('read')})"
            )
    elif any(m.startswith("mbarrier::") for m in i.modifiers):
        _load(e, i)
    elif i.has("bulk_group"):
        _store(e, i)
    else:
        raise Unknown("this form of bulk copy")


def _tensor(e: Emitter, operand: Operand) -> tuple[str, str]:
    """Expressions of a map's address and of the coordinates."""
    if not isinstance(operand, Group) or not isinstance(operand.items[1], Vector):
        raise Unknown("tensor operand")
    coordinates = ", ".join(e.read(item, "s32") for item in operand.items[1].items)
    return e.read(operand.items[0], "u64"), f"({coordinates},)"


def _load(e: Emitter, i: Instruction) -> None:
    if not i.has("global"):
        raise Unknown("a bulk copy between shared memories")
    destination = e.address(i.operands[0], "shared")
    if i.has("tensor"):
        source, size = _tensor(e, i.operands[1])
        rest = i.operands[2:]
    else:
        source, size = e.address(i.operands[1], "global"), e.read(i.operands[2], "u32")
        rest = i.operands[3:]
    if not isinstance(rest[0], Address):
        raise Unknown("barrier operand")
    barrier = e.address(rest[0], "shared")
    multicast = e.read(rest[1], "u16") if i.has("multicast::cluster") else "None"
    with e.active() as mask:
        e.do(
            f"{e.use(start_load)}(c, u, {mask}, {e.index}, {destination}, {source}, {size}, "
            f"{barrier}, {multicast})"
        )


def _store(e: Emitter, i: Instruction) -> None:
    operation = next((m for m in i.modifiers if m in OPERATIONS), "") if i.has("reduce") else ""
    if i.has("reduce") and not operation:
        raise Unknown("this reduction")
    kind = ""
    if i.has("tensor"):
        target, size = _tensor(e, i.operands[0])
    else:
        target, size = e.address(i.operands[0], "global"), e.read(i.operands[2], "u32")
        kind = i.type if operation else ""
        if operation and kind not in TYPES:
            raise Unknown(f"reductions of {kind}")
    source = e.address(i.operands[1], "shared")
    with e.active() as mask:
        e.do(
            f"{e.use(start_store)}(c, u, {mask}, {e.index}, {target}, {size}, {source}, "
            f"{operation!r}, {kind!r})"
        )
