"""atom and red: one lane after another, in the order of cta, warp and lane.

Between instructions the schedule decides, so that a counter which hands out tiles is the same in
every ordinary run and follows the seed in random ones. In random schedules the lanes that add
floats come in any order, and what they add may be put off (ordering/sums.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from flashsmith.emulator.checks.bounds import SHIFT, global_cells, shared_offsets
from flashsmith.emulator.checks.undefined import require_defined_value
from flashsmith.emulator.copies.async_state import Mask, active_lanes
from flashsmith.emulator.machine.address_space import SHARED_WINDOW, WINDOW_BYTES
from flashsmith.emulator.machine.emit import Emitter
from flashsmith.emulator.machine.opcode import Unknown, opcode
from flashsmith.emulator.machine.values import Value
from flashsmith.emulator.ops.memory import emit_flags, space_of
from flashsmith.emulator.ordering.sums import put_off_lanes
from flashsmith.emulator.ptx.instruction import Instruction, Operand, Vector

if TYPE_CHECKING:
    from collections.abc import Callable

    from flashsmith.emulator.machine.chunk import Chunk
    from flashsmith.emulator.machine.unit import Unit

_UFUNC: dict[str, np.ufunc] = {
    "add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and,
    "or": np.bitwise_or, "xor": np.bitwise_xor,
}  # fmt: skip
_STEP: dict[str, Callable[[Value, Value], Value]] = {
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
    """atom{.space}.op.type d, [a], b{, c}; red is the same without d, of vectors too."""
    operation = next((m for m in i.modifiers if m in _UFUNC or m in _STEP or m == "cas"), "")
    space = space_of(i)
    if not operation or i.type not in _TYPES or space not in ("global", "shared", "generic"):
        raise Unknown("this operation, type or state space")
    first = 1 if i.opcode == "atom" else 0
    rows = [", ".join(e.read(x, i.type) for x in row) for row in _rows(i, first, operation)]
    values = ", ".join(f"({row},)" for row in rows)
    address = e.assign(e.address(i.operands[first], space))
    with e.active() as mask:
        old = e.assign(
            f"{e.use(_apply)}(c, u, {mask}, {e.index}, {space!r}, {address}, ({values},), "
            f"{operation!r}, {first == 1})"
        )
        emit_flags(e, i, mask, space, address)
        if first:
            e.write(i.operands[0], old, i.type)


def _rows(i: Instruction, first: int, operation: str) -> list[tuple[Operand, ...]]:
    """The operands of each element: one element, or those of a vector."""
    operands = i.operands[first + 1 :]
    wide = next((int(m[1]) for m in i.modifiers if m in ("v2", "v4", "v8")), 1)
    given = operands[0]
    if wide == 1 and not isinstance(given, Vector):
        return [operands]
    # PTX ISA, "red": .v2 and .v4 of .f32, in global memory.
    if not isinstance(given, Vector) or (i.opcode, operation, i.type) != ("red", "add", "f32"):
        raise Unknown("vectors other than red.global.add.f32")
    if wide not in (2, 4) or len(given.items) != wide or space_of(i) != "global":
        raise Unknown("a vector of other than 2 or 4 elements in global memory")
    return [(item,) for item in given.items]


def _apply(
    c: Chunk, u: Unit, m: Mask, index: int, space: str, address: Value,
    rows: tuple[tuple[Value, ...], ...], operation: str, wants_old: bool,
) -> Value:  # fmt: skip
    """`rows` holds the operands of each element of a vector; most have one."""
    lanes = active_lanes(u, m)
    if c.random is not None and rows[0][0].dtype.kind == "f":
        lanes = c.random.permutation(lanes)
    for value in (address, *(value for row in rows for value in row)):
        require_defined_value(c, u, m, value, index)
    given = [[np.asarray(u.array(value)[lanes]) for value in row] for row in rows]
    dtype = given[0][0].dtype
    where = u.array(address)[lanes]
    if space == "generic":
        space = "shared" if _in_shared(where) else "global"
        where = (where - np.uint64(SHARED_WINDOW)).astype(np.uint32) if space == "shared" else where
    if space == "global":
        return _apply_global(c, u, lanes, where, given, operation, wants_old, index)
    size = dtype.itemsize
    offsets = shared_offsets(c, u, lanes, where, size, index)
    if c.shadow is not None:
        c.shadow.land(u.lane_warp[lanes], offsets, size, c.tick(index))
    memory = c.shared_views[size].view(dtype)
    return _in_turn(u, lanes, memory, offsets >> SHIFT[size], given[0], operation, wants_old)


def _apply_global(
    c: Chunk, u: Unit, lanes: NDArray[np.intp], where: NDArray[Any],
    given: list[list[NDArray[Any]]], operation: str, wants_old: bool, index: int,
) -> Value:  # fmt: skip
    wide, dtype = len(given), given[0][0].dtype
    first = global_cells(c, u, lanes, where, dtype.itemsize * wide, index) * wide
    if c.sums is not None and operation == "add" and dtype.kind == "f" and not wants_old:
        values = np.stack([row[0] for row in given], axis=1)
        put_off_lanes(c, u, lanes, first[:, None] + np.arange(wide), values, index)
        return None
    if c.sums is not None:
        c.sums.settle(first, dtype.itemsize)
    memory = c.memory.views[dtype.itemsize].view(dtype)
    out: Value = None
    for element, row in enumerate(given):
        out = _in_turn(u, lanes, memory, first + element, row, operation, wants_old)
    return out


def _in_turn(
    u: Unit, lanes: NDArray[np.intp], memory: NDArray[Any], cells: NDArray[np.int64],
    given: list[NDArray[Any]], operation: str, wants_old: bool,
) -> Value:  # fmt: skip
    if operation in _UFUNC and not wants_old:
        _UFUNC[operation].at(memory, cells, given[0])
        return None
    out = np.zeros(32 * u.pairs, memory.dtype)
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
