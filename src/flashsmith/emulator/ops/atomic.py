"""atom and red: one lane after another, in the order of block, warp and lane.

Between instructions the schedule decides, so that a counter which hands out tiles is the same in
every ordinary run and follows the seed in random ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from flashsmith.emulator.checks.bounds import SHIFT, global_cells, shared_offsets
from flashsmith.emulator.copies.async_state import Mask, active_lanes
from flashsmith.emulator.machine.address_space import SHARED_WINDOW, WINDOW_BYTES
from flashsmith.emulator.machine.emit import Emitter
from flashsmith.emulator.machine.opcode import Unknown, opcode
from flashsmith.emulator.machine.values import Value
from flashsmith.emulator.ops.memory import space_of
from flashsmith.emulator.ptx.instruction import Instruction

if TYPE_CHECKING:
    from collections.abc import Callable

    from flashsmith.emulator.machine.chunk import Chunk
    from flashsmith.emulator.machine.unit import Unit

_UFUNC: dict[str, Any] = {  # Any: numpy ufuncs
    "add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and,
    "or": np.bitwise_or, "xor": np.bitwise_xor,
}  # fmt: skip
_STEP: dict[str, Callable[[Any, Any], Any]] = {  # Any: numpy scalars
    "exch": lambda old, new: new,
    "inc": lambda old, limit: old - old if old >= limit else old + limit.dtype.type(1),
    "dec": lambda old, limit: limit if old == 0 or old > limit else old - limit.dtype.type(1),
}
_TYPES = ("u32", "s32", "u64", "s64", "f32", "f64", "b32", "b64")


@opcode(
    "atom", "red", writes=lambda i: (0,) if i.opcode == "atom" else (), cuts="after",
    counts_as="atomic", touches_memory=True,
)  # fmt: skip
def emit_atomic(e: Emitter, i: Instruction) -> None:
    """atom{.space}.op.type d, [a], b{, c}; red is the same without d."""
    operation = next((m for m in i.modifiers if m in _UFUNC or m in _STEP or m == "cas"), "")
    space = space_of(i)
    if not operation or i.type not in _TYPES or space not in ("global", "shared", "generic"):
        raise Unknown("this operation, type or state space")
    first = 1 if i.opcode == "atom" else 0
    values = ", ".join(e.read(operand, i.type) for operand in i.operands[first + 1 :])
    address = e.address(i.operands[first], space)
    with e.active() as mask:
        old = e.assign(
            f"{e.use(_apply)}(c, u, {mask}, {e.index}, {space!r}, {address}, ({values},), "
            f"{operation!r}, {first == 1})"
        )
        if first:
            guard, e.guard = e.guard, None
            e.write(i.operands[0], old, i.type)
            e.guard = guard


def _apply(
    c: Chunk, u: Unit, m: Mask, index: int, space: str, address: Value, values: tuple[Value, ...],
    operation: str, wants_old: bool,
) -> Value:  # fmt: skip
    lanes = active_lanes(u, m)
    given = [np.asarray(u.array(value)[lanes]) for value in values]
    dtype = given[0].dtype
    where = u.array(address)[lanes]
    if space == "generic":
        space = "shared" if _in_shared(where) else "global"
        where = (where - np.uint64(SHARED_WINDOW)).astype(np.uint32) if space == "shared" else where
    size = dtype.itemsize
    if space == "global":
        cells = global_cells(c, u, lanes, where, size, index)
        memory = c.memory.views[size].view(dtype)
    else:
        offsets = shared_offsets(c, u, lanes, where, size, index)
        cells, memory = offsets >> SHIFT[size], c.shared_views[size].view(dtype)
        if c.shadow is not None:
            c.shadow.land(u.lane_warp[lanes], offsets, size, c.tick(index))
    out = np.zeros(32 * u.pairs, dtype)
    if operation in _UFUNC and not wants_old:
        _UFUNC[operation].at(memory, cells, given[0])
    else:
        out[lanes] = _one_by_one(memory, cells, given, operation)
        u.yielded = u.yielded or bool((memory[cells] == out[lanes]).all())  # it only looked
    return out


def _in_shared(address: NDArray[np.uint64]) -> bool:
    inside = (address >= SHARED_WINDOW) & (address < SHARED_WINDOW + WINDOW_BYTES)
    return bool(inside.all())


def _one_by_one(
    memory: NDArray[Any], cells: NDArray[np.int64], given: list[NDArray[Any]], operation: str
) -> NDArray[Any]:
    """The values before each lane's turn."""
    old = np.zeros(len(cells), memory.dtype)
    step = _STEP.get(operation) or _UFUNC.get(operation)
    for turn, cell in enumerate(cells.tolist()):
        before = old[turn] = memory[cell]
        if operation == "cas":
            if before == given[0][turn]:
                memory[cell] = given[1][turn]
        else:
            assert step is not None
            memory[cell] = step(before, given[0][turn])
    return old
