"""stmatrix: 8 x 8 matrices of 16-bit elements from the registers of a warp to shared memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from flashsmith.emulator.checks.undefined import any_undefined, marked
from flashsmith.emulator.machine.access import store
from flashsmith.emulator.machine.opcode import Unknown, opcode
from flashsmith.emulator.machine.unit import LANES
from flashsmith.emulator.machine.values import Value
from flashsmith.emulator.ptx.instruction import Instruction, Vector

if TYPE_CHECKING:
    from flashsmith.emulator.machine.chunk import Chunk
    from flashsmith.emulator.machine.emit import Emitter
    from flashsmith.emulator.machine.unit import Unit

_COUNTS = {"x1": 1, "x2": 2, "x4": 4}


@opcode("stmatrix", writes=0, counts_as="shared store", touches_memory=True)
def stmatrix(e: Emitter, i: Instruction) -> None:
    """Lane 8k + r gives the address of row r of matrix k; register k holds matrix k."""
    count = next((_COUNTS[m] for m in i.modifiers if m in _COUNTS), 0)
    vector = i.operands[1]
    items = vector.items if isinstance(vector, Vector) else (vector,)
    if not i.has("m8n8") or i.type != "b16" or len(items) != count:
        raise Unknown("only m8n8 of b16, with one register per matrix")
    words = ", ".join(e.read(item, "u32") for item in items)
    address = e.address(i.operands[0], "shared")
    e.do(f"{e.use(_store)}(c, u, m, {e.index}, {address}, ({words},), {i.has('trans')})")


def _store(
    c: Chunk, u: Unit, m: Value, index: int, address: Value, words: tuple[Value, ...], trans: bool
) -> None:
    if m is not None:
        c.fault("divergence", "all 32 threads of the warp must run it", index, u)
    bits = np.stack([u.array(word) for word in words], axis=0).view(np.uint16)
    matrices = bits.reshape(len(words), u.pairs, 8, 8)  # matrix, pair, row l/4, column
    if trans:
        matrices = matrices.swapaxes(2, 3)
    rows = np.ascontiguousarray(matrices.transpose(1, 0, 2, 3)).view(np.complex128)
    value = np.zeros((u.pairs, 32), np.complex128)
    value[:, : 8 * len(words)] = rows.reshape(u.pairs, -1)
    giving = None if len(words) == 4 else np.tile(8 * len(words) > LANES, u.pairs)
    # A lane's word goes into rows that other lanes give: one undefined spoils those of its warp.
    spoilt = any_undefined(words, 32 * u.pairs).reshape(-1, 32).any(axis=1)
    rows_out = marked(value.reshape(-1), np.repeat(spoilt, 32))
    store(c, u, giving, "shared", address, rows_out, 16, index)
