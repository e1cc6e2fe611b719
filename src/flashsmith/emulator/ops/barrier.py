"""bar and barrier, fences, and the convergence of warps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flashsmith.emulator.machine.emit import Emitter
from flashsmith.emulator.machine.opcode import Unknown, opcode
from flashsmith.emulator.machine.segments import FORKED
from flashsmith.emulator.machine.unit import Unit
from flashsmith.emulator.machine.values import Value
from flashsmith.emulator.machine.warp_barrier import sync_lanes
from flashsmith.emulator.ordering.clocks import at_fence
from flashsmith.emulator.ptx.instruction import Instruction

if TYPE_CHECKING:
    from flashsmith.emulator.machine.chunk import Chunk


@opcode("bar", writes=lambda i: (0,) if i.has("result") else (), counts_as="barrier",
        cuts="both", touches_memory=True)  # fmt: skip
def emit_bar(e: Emitter, i: Instruction) -> None:
    """bar.sync a{, b}; bar.arrive a, b; bar.warp.sync mask."""
    emit_barrier(e, i)


def emit_barrier(e: Emitter, i: Instruction) -> None:
    """The barrier of a cta, also under its name `barrier{.cta}`."""
    if i.has("warp"):
        _emit_warp_barrier(e, i)
        return
    if i.has("vote") or i.has("result"):
        _emit_reduction(e, i)
        return
    waits = i.has("sync")
    if not waits and not i.has("arrive"):
        raise Unknown("only .sync and .arrive")
    ident = e.read(i.operands[0], "u32")
    count = e.read(i.operands[1], "u32") if len(i.operands) > 1 else "None"
    with e.active() as mask:
        e.do(f"{e.use(arrive)}(c, u, {mask}, {ident}, {count}, {waits}, {e.index})")


def _emit_warp_barrier(e: Emitter, i: Instruction) -> None:
    """A segment of its own: lanes that do different things here become units."""
    assert e.segment is not None
    members = e.read(i.operands[0], "u32")
    with e.active() as mask:
        e.do(
            f"if {e.use(sync_lanes)}(c, u, {mask}, {members}, {e.index}, "
            f"{e.segment.successors[0]}): return {FORKED}"
        )


def _emit_reduction(e: Emitter, i: Instruction) -> None:
    """bar.red d, a{, b}, p: the front end has divided it into a vote and its result."""
    if i.guard is not None:
        raise Unknown("a guarded bar.red")
    if i.has("vote"):
        ident, vote = e.read(i.operands[0], "u32"), e.read(i.operands[-1], "pred")
        count = e.read(i.operands[1], "u32") if len(i.operands) > 2 else "None"
        e.do(f"c.barriers.vote(u, {ident}, {count}, {vote}, {e.index})")
        return
    operation = next(m for m in ("popc", "and", "or") if i.has(m))
    value = f"c.barriers.outcome(u, {e.read(i.operands[1], 'u32')}, {operation!r})"
    e.write(i.operands[0], value, "u32" if operation == "popc" else "pred")


def arrive(
    c: Chunk, u: Unit, m: Value, ident: Value, count: Value, waits: bool, index: int
) -> None:
    """Arrival of all warps of a unit at a named barrier."""
    c.barriers.arrive(u, ident, count, index, waits=waits)


def emit_thread_fence(e: Emitter, i: Instruction) -> None:
    """Memory is in program order here: a fence only says what other ctas may know."""
    if any(i.has(scope) for scope in ("gpu", "sys", "gl")):
        acquires, releases = not i.has("release"), not i.has("acquire")
        with e.active() as mask:
            e.do(f"{e.use(at_fence)}(c, u, {mask}, {acquires}, {releases})")


@opcode("membar", writes=0, counts_as="fence")
def emit_membar(e: Emitter, i: Instruction) -> None:
    """membar: a fence.sc of its level."""
    if not i.has("proxy"):
        emit_thread_fence(e, i)
    if i.modifiers not in (("cta",), ("gl",), ("sys",), ("proxy", "alias")):
        raise Unknown("this form of membar")
