"""Exchange inside a warp: shfl, vote, match, activemask, redux."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from flashsmith.emulator.checks.undefined import spreads_in_warp
from flashsmith.emulator.machine.emit import Emitter
from flashsmith.emulator.machine.opcode import Unknown, opcode
from flashsmith.emulator.machine.unit import Unit
from flashsmith.emulator.machine.values import Value
from flashsmith.emulator.ptx.instruction import Instruction, Pair
from flashsmith.emulator.ptx.types import SIZES

if TYPE_CHECKING:
    from flashsmith.emulator.machine.chunk import Chunk

_LANE = np.arange(32)
_BIT = np.uint32(1) << _LANE.astype(np.uint32)


@opcode("shfl", counts_as="shuffle")
def emit_shfl(e: Emitter, i: Instruction) -> None:
    """shfl.sync.{up,down,bfly,idx}.b32 d|p, a, b, c, membermask."""
    if not i.has("sync"):
        raise Unknown("only shfl.sync")
    mode = next(m for m in ("up", "down", "bfly", "idx") if i.has(m))
    target = i.operands[0]
    first, second = (target.first, target.second) if isinstance(target, Pair) else (target, None)
    a, b, third, members = i.operands[1:5]
    arguments = f"{e.read(b, 'u32')}, {e.read(third, 'u32')}, {e.read(members, 'u32')}"
    kind = "u32"
    with e.active() as mask:
        out = e.assign(
            f"{e.use(shuffle)}(c, u, {mask}, {mode!r}, {e.read(a, kind)}, {arguments}, {e.index})"
        )
        e.write(first, f"{out}[0]", kind)
        if second is not None:
            e.write(second, f"{out}[1]", "pred")


def shuffle(
    c: Chunk,
    u: Unit,
    m: Value,
    mode: str,
    a: Value,
    b: Value,
    clamp: Value,
    members: Value,
    index: int,
) -> tuple[Value, Value]:
    """Values of other lanes, and whether the source lane was inside its segment."""
    source, valid = _source_lanes(u, mode, b, clamp)
    if c.options.checks and (m is not None or not _is_all(members)):
        _check_members(c, u, m, members, source, valid, index)
    if a.ndim == 0:
        return a, valid
    rows = a.reshape(-1, 32)
    if source.ndim == 1:
        return rows[:, source].reshape(-1), valid
    return rows[np.arange(len(rows))[:, None], source].reshape(-1), valid


def _is_all(members: Value) -> bool:
    return members.ndim == 0 and int(members) == 0xFFFFFFFF


def _source_lanes(u: Unit, mode: str, b: Value, clamp: Value) -> tuple[Value, Value]:
    """PTX ISA "shfl.sync": the lane to read from, and whether it is in bounds."""
    if b.ndim == 0 and clamp.ndim == 0:
        source, valid = u.cached(
            f"shfl {mode} {int(b)} {int(clamp)}",
            lambda: _source_rule(mode, _LANE, int(b) & 31, int(clamp)),
        )
        return source, u.cached(
            f"shflp {mode} {int(b)} {int(clamp)}", lambda: np.tile(valid, u.pairs)
        )
    lane = np.tile(_LANE, (u.pairs, 1))
    step = u.array(b).astype(np.int64).reshape(-1, 32) & 31
    bound = u.array(clamp).astype(np.int64).reshape(-1, 32)
    source, valid = _source_rule(mode, lane, step, bound)
    return source, valid.reshape(-1)


def _source_rule(mode: str, lane: Value, b: Value, clamp: Value) -> tuple[Value, Value]:
    segment, bound = (clamp >> 8) & 31, clamp & 31
    highest = (lane & segment) | (bound & ~segment)
    lowest = lane & segment
    if mode == "up":
        source = lane - b
        valid = source >= highest
    elif mode == "down":
        source = lane + b
        valid = source <= highest
    elif mode == "bfly":
        source = lane ^ b
        valid = source <= highest
    else:
        source = lowest | (b & ~segment)
        valid = source <= highest
    return np.where(valid, source, lane), valid


def _check_members(
    c: Chunk, u: Unit, m: Value, members: Value, source: Value, valid: Value, index: int
) -> None:
    active = np.ones((u.pairs, 32), np.bool_) if m is None else m.reshape(-1, 32)
    named = (u.array(members).reshape(-1, 32) & _BIT) != 0
    if (active & ~named).any():
        lane = int(np.flatnonzero((active & ~named).reshape(-1))[0])
        c.fault("bad member mask", "a lane that is not in its own member mask", index, u, lane=lane)
    rows = np.broadcast_to(source, (u.pairs, 32))
    off = active & ~np.take_along_axis(active, rows, axis=1)
    if off.any():
        lane = int(np.flatnonzero(off.reshape(-1))[0])
        c.fault("inactive lane", "reads a lane that is not active", index, u, lane=lane)


@opcode("vote", counts_as="vote")
def emit_vote(e: Emitter, i: Instruction) -> None:
    """vote.sync.{all,any,uni}.pred p, a, members; vote.sync.ballot.b32 d, a, members."""
    mode = next(m for m in ("all", "any", "uni", "ballot") if i.has(m))
    d, a, members = i.operands
    with e.active() as mask:
        value = f"{e.use(vote)}(u, {mask}, {mode!r}, {e.read(a, 'pred')}, {e.read(members, 'u32')})"
        e.write(d, value, "u32" if mode == "ballot" else "pred")


@spreads_in_warp
def vote(u: Unit, m: Value, mode: str, a: Value, members: Value) -> Value:
    """What the active member lanes of each warp say together."""
    said = u.array(a).reshape(-1, 32)
    voting = (u.array(members).reshape(-1, 32) & _BIT) != 0
    if m is not None:
        voting = voting & m.reshape(-1, 32)
    if mode == "ballot":
        bits = np.where(said & voting, _BIT, np.uint32(0)).sum(axis=1, dtype=np.uint32)
        return np.repeat(bits, 32)
    every = (said | ~voting).all(axis=1)
    some = (said & voting).any(axis=1)
    out = {"all": every, "any": some, "uni": every | ~some}[mode]
    return np.repeat(out, 32)


@opcode("activemask", counts_as="vote")
def emit_activemask(e: Emitter, i: Instruction) -> None:
    """activemask.b32 d."""
    with e.active() as mask:
        true = e.value("K_pred_1", np.bool_(True))
        every = e.value("K_all_lanes", np.uint32(0xFFFFFFFF))
        e.write(i.operands[0], f"{e.use(vote)}(u, {mask}, 'ballot', {true}, {every})", "u32")


@opcode("match", counts_as="vote")
def emit_match(e: Emitter, i: Instruction) -> None:
    """match.sync.{any,all}: lanes that hold the same value."""
    target = i.operands[0]
    first, second = (target.first, target.second) if isinstance(target, Pair) else (target, None)
    kind = f"u{8 * SIZES[i.type]}"
    a, members = e.read(i.operands[1], kind), e.read(i.operands[2], "u32")
    with e.active() as mask:
        out = e.assign(f"{e.use(match)}(u, {mask}, {i.has('all')}, {a}, {members})")
        e.write(first, f"{out}[0]", "u32")
        if second is not None:
            e.write(second, f"{out}[1]", "pred")


@spreads_in_warp
def match(u: Unit, m: Value, every: bool, a: Value, members: Value) -> tuple[Value, Value]:
    """Masks of the member lanes with the lane's own value; whether all are the same."""
    value = u.array(a).reshape(-1, 32)
    voting = (u.array(members).reshape(-1, 32) & _BIT) != 0
    if m is not None:
        voting = voting & m.reshape(-1, 32)
    same = (value[:, :, None] == value[:, None, :]) & voting[:, None, :]
    masks = np.where(same, _BIT, np.uint32(0)).sum(axis=2, dtype=np.uint32)
    if not every:
        return masks.reshape(-1), None
    all_same = (same | ~voting[:, None, :]).all(axis=2)
    return np.where(all_same, masks, np.uint32(0)).reshape(-1), all_same.reshape(-1)


_REDUCE: dict[str, tuple[np.ufunc, int | None]] = {
    "add": (np.add, 0), "min": (np.minimum, None), "max": (np.maximum, None),
    "and": (np.bitwise_and, -1), "or": (np.bitwise_or, 0), "xor": (np.bitwise_xor, 0),
}  # fmt: skip


@opcode("redux", counts_as="vote")
def emit_redux(e: Emitter, i: Instruction) -> None:
    """redux.sync.op.type d, a, members."""
    if i.type in ("f32",):
        raise Unknown("redux of f32")
    operation = next(m for m in _REDUCE if i.has(m))
    d, a, members = i.operands
    kind = i.type if i.type[0] == "s" else "u32"
    with e.active() as mask:
        value = (
            f"{e.use(redux)}(u, {mask}, {operation!r}, {e.read(a, kind)}, {e.read(members, 'u32')})"
        )
        e.write(d, value, kind)


@spreads_in_warp
def redux(u: Unit, m: Value, operation: str, a: Value, members: Value) -> Value:
    """A reduction over the active member lanes, the same in each of them."""
    value = u.array(a).reshape(-1, 32)
    voting = (u.array(members).reshape(-1, 32) & _BIT) != 0
    if m is not None:
        voting = voting & m.reshape(-1, 32)
    function, neutral = _REDUCE[operation]
    limits = np.iinfo(value.dtype)
    if neutral is None:
        neutral = limits.max if operation == "min" else limits.min
    filled = np.where(voting, value, np.array(neutral).astype(value.dtype))
    return np.repeat(function.reduce(filled, axis=1).astype(value.dtype), 32)
