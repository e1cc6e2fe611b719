"""wgmma: products of a warpgroup, each warp its own sixteen rows.

The product is computed when the instruction is issued; what may not be touched before the wait is
watched by wgmma_pipeline.py (registers) and async_shadow.py (shared memory). A product is rounded
to float32 once: the order of additions is not the hardware's.
"""

from __future__ import annotations

import re
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from flashsmith.base.dtypes import DType
from flashsmith.emulator.checks.async_shadow import (
    Access,
    Readers,
    landed_together,
    look_closely,
    tags_of,
)
from flashsmith.emulator.checks.undefined import Undefined, any_undefined, marked
from flashsmith.emulator.copies.mbarrier import Ints
from flashsmith.emulator.copies.smem_layout import CHUNK_BYTES, MatrixDescriptor, operand_chunks
from flashsmith.emulator.machine.matrix_products import exact_product, wide_numbers
from flashsmith.emulator.machine.opcode import Unknown, opcode
from flashsmith.emulator.machine.values import Value
from flashsmith.emulator.ops.bulk_copy import group_count
from flashsmith.emulator.ptx.instruction import Imm, Instruction, Operand, Reg, Vector

if TYPE_CHECKING:
    from flashsmith.emulator.machine.chunk import Chunk
    from flashsmith.emulator.machine.emit import Emitter
    from flashsmith.emulator.machine.unit import Unit

_Scalar = TypeVar("_Scalar", np.float32, np.bool_)
_DIMENSIONS = attrgetter("ndim")
_SHAPE = re.compile(r"m64n(\d+)k16$")
MOST_KEPT_BYTES = 64 << 20  # of places of operands, in a chunk
Operands = tuple[Ints, Ints, Ints]  # places by pair, those to be read, marks of reading them


def _accumulators(i: Instruction) -> tuple[int, ...]:
    return (0,) if i.has("mma_async") else ()


@opcode(
    "wgmma",
    writes=_accumulators,
    updates=_accumulators,
    counts_as="matrix",
    touches_memory=True,
)
def wgmma(e: Emitter, i: Instruction) -> None:
    """Translates wgmma and its fence, commit and wait."""
    if i.has("fence"):
        return
    if i.has("commit_group"):
        e.do(f"{e.use(_commit)}(c, u)")
    elif i.has("wait_group"):
        e.do(f"{e.use(_wait)}(c, u, {group_count(i, most=7)}, {e.index})")
    elif i.has("mma_async"):
        _product(e, i)
    else:
        raise Unknown("this form of wgmma")


def _product(e: Emitter, i: Instruction) -> None:
    shape = next((m for m in map(_SHAPE.match, i.modifiers) if m), None)
    kinds = i.modifiers[-3:]
    if shape is None or kinds[0] not in ("f32", "f16") or kinds[1] not in ("f16", "bf16"):
        raise Unknown("only m64nNk16 of f16 or bf16 into f32 or f16")
    n = int(shape[1])
    d, a, b, scale_d = i.operands[:4]
    flags = [o.value for o in i.operands[4:] if isinstance(o, Imm)]
    in_registers = isinstance(a, Vector)
    if n % 8 or not 8 <= n <= 256 or len(flags) != (3 if in_registers else 4):
        raise Unknown("operands of this number and size")
    words = n // 2 if kinds[0] == "f32" else n // 4
    if not isinstance(d, Vector) or len(d.items) != words:
        raise Unknown(f"n{n} takes {words} accumulators")
    if (isinstance(a, Vector) and len(a.items) != 4) or any(f not in (-1, 0, 1) for f in flags):
        raise Unknown("A has 4 registers; signs are 1 or -1, transpositions 0 or 1")
    if isinstance(a, Vector):
        a_text = f"({', '.join(e.read(r, 'u32') for r in a.items)})"
    else:
        a_text = e.read(a, "u64")
    dtype = DType.FP16 if kinds[1] == "f16" else DType.BF16
    form = e.value(f"W{e.index}", _Form(n, dtype, kinds[0], tuple(flags), e.index))
    kind = "f32" if kinds[0] == "f32" else "u32"
    old = ", ".join(_or_none(r) for r in d.items)
    result = e.assign(
        f"{e.use(_multiply)}(c, u, m, {form}, ({old},), {a_text}, {e.read(b, 'u64')}, "
        f"{e.read(scale_d, 'pred')})"
    )
    e.write_rows(d.items, result, kind)


def _or_none(register: Operand) -> str:
    """The raw register: undefined accumulators are None and are not read when scale-d is false."""
    if not isinstance(register, Reg):
        raise Unknown("accumulators are registers")
    return f"r{register.number}"


class _Form:
    """The constants of one wgmma in the program."""

    def __init__(
        self, n: int, dtype: DType, accumulator: str, flags: tuple[int, ...], index: int
    ) -> None:
        self.n, self.dtype, self.accumulator, self.index = n, dtype, accumulator, index
        self.sign = flags[0] * flags[1]
        self.a_mn_major = bool(flags[2]) if len(flags) == 4 else False
        self.b_mn_major = bool(flags[-1])


class WgmmaGroups:
    """Groups of each warp: how many were committed, and what the open ones read."""

    def __init__(self, chunk: Chunk) -> None:
        self.committed = np.zeros((len(chunk.ctas), chunk.warps), np.int64)
        self.readers = Readers(chunk)
        self.operands: dict[tuple[object, ...], Operands] = {}  # by descriptors, ctas and warps
        self._kept_bytes = 0
        chunk.on_start.append(self.readers.drop)

    def keep(self, key: tuple[object, ...], operand: Operands) -> None:
        """Keeps where an operand lies for the next time: rings come round again."""
        self._kept_bytes += sum(part.nbytes for part in operand)
        if self._kept_bytes > MOST_KEPT_BYTES:
            self.operands.clear()
            self._kept_bytes = sum(part.nbytes for part in operand)
        self.operands[key] = operand

    @staticmethod
    def of(chunk: Chunk) -> WgmmaGroups:
        """The groups of a chunk."""
        found = chunk.state.get("wgmma")
        if found is None:
            found = chunk.state["wgmma"] = WgmmaGroups(chunk)
        assert isinstance(found, WgmmaGroups)
        return found


def _commit(c: Chunk, u: Unit) -> None:
    WgmmaGroups.of(c).committed[u.cta, u.warp] += 1


def _wait(c: Chunk, u: Unit, count: int, index: int) -> None:
    groups = WgmmaGroups.of(c)
    if c.shadow is None or not groups.readers.pending:
        return
    ends = np.full(groups.committed.shape, -1, np.int64)  # groups below are over, by warp
    ends[u.cta, u.warp] = groups.committed[u.cta, u.warp] - count
    groups.readers.end(lambda cta, warp, group: group < ends[cta, warp], index)


def _multiply(
    c: Chunk,
    u: Unit,
    m: NDArray[np.bool_] | None,
    form: _Form,
    old: tuple[Value, ...],
    a: Value,
    b: Value,
    scale_d: Value,
) -> Value:  # a row a register
    """The accumulators after one step of sixteen along K."""
    if m is not None:
        c.fault("divergence", "all 128 threads of the warpgroup must run it", form.index, u)
    if isinstance(a, tuple):
        left, hollow_rows = _from_registers(u, form, a), _hollow_registers(u, a)
    else:
        left, hollow_rows = _from_smem(c, u, form, a, 64, own_rows=True)
    right, hollow_columns = _from_smem(c, u, form, b, form.n, own_rows=False)
    left = left if form.sign > 0 else -left
    product = exact_product(left.reshape(len(right), -1, 16), right)
    fragments = _fragments(product.reshape(u.pairs, 16, form.n), np.float32)
    add = _by_pair(u, scale_d)
    kinds = set(map(type, old))
    if add.any():
        if type(None) in kinds:
            c.fault("uninitialised", "adds to accumulators that nothing wrote", form.index, u)
        total = np.add(fragments, _accumulated(u, form, old))
        fragments = total if add.all() else np.where(np.repeat(add, 32), total, fragments)
    out = fragments if form.accumulator == "f32" else _packed(fragments)
    if hollow_rows is None and hollow_columns is None and Undefined not in kinds:
        return out
    hollow = _hollow(u, form, hollow_rows, hollow_columns, old, add)
    return out if hollow is None else [marked(*row) for row in zip(out, hollow, strict=True)]


def _by_pair(u: Unit, value: Value) -> NDArray[Any]:
    """A register that is one for all lanes of a warp, by pair."""
    value = np.asarray(value)
    return np.full(u.pairs, value) if value.ndim == 0 else value[::32]


def _hollow_registers(u: Unit, words: tuple[Value, ...]) -> NDArray[np.bool_] | None:
    """Rows of A that come from undefined registers: all of a warp that has one."""
    if not any(isinstance(word, Undefined) for word in words):
        return None
    warps = np.asarray(any_undefined(words, 32 * u.pairs).reshape(-1, 32).any(axis=1))
    return np.repeat(warps[:, None], 16, axis=1)


def _hollow(
    u: Unit,
    form: _Form,
    rows: NDArray[np.bool_] | None,
    columns: NDArray[np.bool_] | None,
    old: tuple[Value, ...],
    add: NDArray[np.bool_],
) -> NDArray[np.bool_] | None:
    """Which accumulators are undefined: a row of lanes a register, or None for none."""
    carried = add.any() and any(isinstance(value, Undefined) for value in old)
    if rows is None and columns is None and not carried:
        return None
    product = np.zeros((u.pairs, 16, form.n), np.bool_)
    if rows is not None:
        product |= rows[:, :, None]
    if columns is not None:
        product |= columns[:, None, :]
    out = _fragments(product, np.bool_)
    if form.accumulator != "f32":
        out = np.asarray(out.reshape(len(out) // 2, 2, -1).any(axis=1))
    if carried:
        adding = np.repeat(add, 32)
        for number, value in enumerate(old):
            out[number] |= any_undefined((value,), 32 * u.pairs) & adding
    return out


def _from_registers(u: Unit, form: _Form, words: tuple[Value, ...]) -> NDArray[np.float64]:
    """A from registers: word 0 row l/4, 1 row + 8, 2 and 3 the same with k + 8."""
    bits = _rows(u, words).view(np.uint16)
    values = wide_numbers(bits, form.dtype is DType.BF16).reshape(
        2, 2, u.pairs, 8, 4, 2
    )  # k half, row half
    return np.ascontiguousarray(values.transpose(2, 1, 3, 0, 4, 5)).reshape(u.pairs, 16, 16)


def _from_smem(
    c: Chunk, u: Unit, form: _Form, descriptor: Value, extent: int, *, own_rows: bool
) -> tuple[NDArray[np.float64], NDArray[np.bool_] | None]:
    """An operand behind a descriptor: A as (pairs, 16, 16), B as (pairs / sharers, 16, N).

    Also which rows of it (M or N, by pair) hold what nothing has written, or None for none.
    """
    bits = _by_pair(u, descriptor)
    mn_major = form.a_mn_major if own_rows else form.b_mn_major
    rows = 16 if own_rows else extent
    groups = WgmmaGroups.of(c)
    pairs = u.cached("bytes of pairs", lambda: (u.cta.tobytes(), u.warp.tobytes()))
    key = (own_rows, rows, mn_major, bits.tobytes(), pairs)
    operand = groups.operands.get(key)
    if operand is None:
        operand = _operand(c, u, form, bits, rows, own_rows=own_rows)
        groups.keep(key, operand)
    places, mine, marks = operand
    unwritten = None
    if c.shadow is not None:
        if not landed_together(c, u, mine):
            lanes, offsets = 32 * np.arange(u.pairs), places * CHUNK_BYTES
            access = Access(c, u, form.index, u.cta, u.warp, lanes, offsets)
            unwritten = look_closely(access, tags_of(c, places))
        group = groups.committed[u.cta, u.warp]
        groups.readers.begin(u.cta, u.warp, group, places, unwritten, marks)
    if c.counters is not None:
        c.counters.bytes["wgmma operands"] += places.size * CHUNK_BYTES
    raw = c.shared_views[CHUNK_BYTES].take(mine).view(np.uint16)
    shape = (len(mine), 16, rows) if mn_major else (len(mine), rows, 16)
    values = wide_numbers(raw, form.dtype is DType.BF16).reshape(shape)
    is_turned = mn_major == own_rows  # A wants rows first, B wants K first
    hollow = None if unwritten is None else _unwritten_rows(unwritten, rows, mn_major)
    return values.swapaxes(1, 2) if is_turned else values, hollow


def _operand(
    c: Chunk, u: Unit, form: _Form, bits: NDArray[Any], rows: int, *, own_rows: bool
) -> Operands:
    """Where the operand of each pair lies."""
    mn_major = form.a_mn_major if own_rows else form.b_mn_major
    first = u.warp % 4 * 16 if own_rows else np.zeros(u.pairs, np.int64)
    # One word a kind of operand: the descriptor, and the first row in its two unused bits.
    key = bits & ~np.uint64(3 << 14) | (first // 16).astype(np.uint64) << np.uint64(14)
    if (key == key[0]).all():
        kinds, which = np.zeros(1, np.int64), np.zeros(u.pairs, np.int64)
    else:
        _, kinds, which = np.unique(key, return_index=True, return_inverse=True)
    chunks = np.stack(
        [
            operand_chunks(int(bits[k]), rows, mn_major=mn_major, first=int(first[k]))
            for k in kinds.tolist()
        ]
    )
    _check_descriptors(c, u, form.index, bits[kinds], which, chunks)
    offsets = chunks[which].reshape(u.pairs, -1) + (u.cta * c.pitch)[:, None]
    places = offsets // CHUNK_BYTES
    marks = places if c.shadow is None else WgmmaGroups.of(c).readers.marks_of(u.warp, places)
    return places, places if own_rows else places[:: _sharers(u, bits)], marks


def _unwritten_rows(
    grains: NDArray[np.bool_], rows: int, mn_major: bool
) -> NDArray[np.bool_] | None:
    """Rows of an operand with an element that nothing has written: (pairs, rows)."""
    if not grains.any():
        return None
    chunks = 2 * rows
    parts = grains.reshape(len(grains), chunks, -1)
    wide = parts.shape[2]  # 4 words or 16 bytes, for 8 elements
    elements = (
        np.repeat(parts, 8 // wide, axis=2)
        if wide <= 8
        else parts.reshape(len(grains), chunks, 8, -1).any(axis=3)
    )
    if mn_major:
        return np.asarray(elements.reshape(len(grains), 16, rows).any(axis=1))
    return np.asarray(elements.reshape(len(grains), rows, 16).any(axis=2))


def _sharers(u: Unit, bits: NDArray[Any]) -> int:
    """How many neighbouring pairs of the unit, the same number everywhere, read the same B."""

    def warps_a_cta() -> int:
        changes = np.flatnonzero(u.cta[1:] != u.cta[:-1])
        run = int(changes[0]) + 1 if len(changes) else u.pairs
        alike = u.pairs % run == 0 and (u.cta.reshape(-1, run) == u.cta[::run, None]).all()
        return run if alike else 1

    run: int = u.cached("warps a cta", warps_a_cta)
    return run if (bits.reshape(-1, run) == bits[::run, None]).all() else 1


def _check_descriptors(
    c: Chunk, u: Unit, index: int, kinds: NDArray[Any], which: Ints, chunks: Ints
) -> None:
    for number, bits in enumerate(kinds.tolist()):
        descriptor = MatrixDescriptor.decode(bits)
        lane = 32 * int((which == number).argmax())
        if descriptor.base_offset:
            message = f"descriptor with base offset {descriptor.base_offset} is not emulated"
            c.fault("descriptor", message, index, u, lane=lane, address=descriptor.start)
        low, high = int(chunks[number].min()), int(chunks[number].max()) + CHUNK_BYTES
        if low < 1024 or high > c.limit:
            message = (
                f"descriptor reaches {low:#x} to {high:#x}, shared memory ends at {c.limit:#x}"
            )
            c.fault("out of bounds", message, index, u, lane=lane, address=descriptor.start)


def _fragments(product: NDArray[Any], of: type[_Scalar]) -> NDArray[_Scalar]:
    """(pairs, 16, N) as rows of registers: 4j + 2i + c is row l/4 + 8i, column 8j + 2(l%4) + c."""
    pairs, _, n = product.shape
    parts = product.reshape(pairs, 2, 8, n // 8, 4, 2)  # pair, i, l/4, j, l%4, c
    turned = parts.transpose(3, 1, 5, 0, 2, 4).astype(of, order="C", copy=False)
    return turned.reshape(n // 2, pairs * 32)


def _rows(u: Unit, registers: tuple[Value, ...]) -> NDArray[Any]:
    """Registers as rows, spread over the lanes."""
    if set(map(type, registers)) != {np.ndarray} or not all(map(_DIMENSIONS, registers)):
        registers = tuple(u.array(value) for value in registers)
    return np.concatenate(registers).reshape(len(registers), -1)


def _accumulated(u: Unit, form: _Form, old: tuple[Value, ...]) -> NDArray[np.float32]:
    rows = _rows(u, old)
    if form.accumulator == "f32":
        return rows.view(np.float32)
    halves = rows.view(np.float16).reshape(len(old), -1, 2).astype(np.float32)
    return np.ascontiguousarray(halves.transpose(0, 2, 1)).reshape(2 * len(old), -1)


def _packed(fragments: NDArray[np.float32]) -> NDArray[np.uint32]:
    halves = fragments.reshape(len(fragments) // 2, 2, -1).transpose(0, 2, 1).astype(np.float16)
    return np.ascontiguousarray(halves).view(np.uint32).reshape(len(fragments) // 2, -1)
