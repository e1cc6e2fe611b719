"""ldmatrix and mma.sync."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from flashsmith.emulator.machine import access
from flashsmith.emulator.machine.emit import Emitter
from flashsmith.emulator.machine.matrix_products import Product
from flashsmith.emulator.machine.opcode import Unknown, opcode
from flashsmith.emulator.machine.unit import Unit
from flashsmith.emulator.machine.values import Value
from flashsmith.emulator.ptx.instruction import Instruction, Vector

if TYPE_CHECKING:
    from flashsmith.emulator.machine.chunk import Chunk


@opcode("ldmatrix", counts_as="ldmatrix", touches_memory=True)
def emit_ldmatrix(e: Emitter, i: Instruction) -> None:
    """ldmatrix.sync.aligned.m8n8.xN{.trans}.shared.b16 {d…}, [a]."""
    if not i.has("m8n8") or i.type != "b16":
        raise Unknown("only .m8n8 of .b16")
    count = next(int(m[1]) for m in i.modifiers if m in ("x1", "x2", "x4"))
    d = i.operands[0]
    items = d.items if isinstance(d, Vector) else (d,)
    if len(items) != count:
        raise Unknown(f"{len(items)} destinations of .x{count}")
    address = e.address(i.operands[1], "shared")
    with e.active() as mask:
        parts = e.assign(
            f"{e.use(ldmatrix)}(c, u, {mask}, {address}, {count}, {i.has('trans')}, {e.index})"
        )
        e.write_rows(items, parts, "u32")


def ldmatrix(
    c: Chunk, u: Unit, m: Value, address: Value, count: int, trans: bool, index: int
) -> Value:
    """`count` matrices of 8 rows of 16 bytes; lanes 8k to 8k+7 give the rows of matrix k.

    Lane 4r+q gets the elements 2q and 2q+1 of row r (of column r when transposed).
    """
    address = u.array(address)
    lanes = None
    if count < 4:
        lanes = u.cached(
            f"ldmatrix{count}", lambda: np.flatnonzero(np.arange(32 * u.pairs) % 32 < 8 * count)
        )
        address = address[lanes]
    rows = access.LOADS["shared"](c, u, lanes, address, 16, index)
    if trans:
        halves = rows.view(np.uint16).reshape(-1, count, 8, 8).transpose(1, 0, 3, 2)
        return np.ascontiguousarray(halves).view(np.uint32).reshape(count, -1)
    words = rows.view(np.uint32).reshape(-1, count, 32).transpose(1, 0, 2)
    return np.ascontiguousarray(words).reshape(count, -1)


@opcode("mma", counts_as="mma")
def emit_mma(e: Emitter, i: Instruction) -> None:
    """mma.sync.aligned.m16n8k16.row.col.f32.{f16,bf16}…: written out when its result is needed."""
    if not i.has("m16n8k16") or i.modifiers[-4:] not in (
        ("f32", "f16", "f16", "f32"),
        ("f32", "bf16", "bf16", "f32"),
    ):
        raise Unknown("only m16n8k16 with f16 or bf16 operands and f32 accumulators")
    if i.guard is not None:
        raise Unknown("a guarded mma")
    e.products.add(e, Product.of(i))
