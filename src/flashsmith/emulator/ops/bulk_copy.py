"""Bulk copies: TMA loads and stores of tensor boxes, plain runs of bytes, and reductions."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from flashsmith.emulator.address_space import PARAM_WINDOW, SHARED_BASE
from flashsmith.emulator.async_shadow import (
    Access,
    Readers,
    check_read,
    check_write,
    rows_of,
)
from flashsmith.emulator.async_state import (
    AsyncState,
    Mask,
    active_lanes,
    at_lanes,
    cluster_target,
)
from flashsmith.emulator.mbarrier import Ints
from flashsmith.emulator.opcode import Unknown
from flashsmith.emulator.ops.mbarrier import find_barrier
from flashsmith.emulator.ptx.instruction import Address, Group, Imm, Instruction, Operand, Vector
from flashsmith.emulator.shadow import IN_FLIGHT
from flashsmith.emulator.smem_layout import CHUNK_BYTES
from flashsmith.emulator.tensor_map import TensorMap, decode_tensor_map
from flashsmith.emulator.transfers import (
    OPERATIONS,
    TYPES,
    LoadFlight,
    Place,
    StoreFlight,
    StoreWait,
    smem_chunks,
)

if TYPE_CHECKING:
    from flashsmith.emulator.chunk import Chunk
    from flashsmith.emulator.emit import Emitter
    from flashsmith.emulator.unit import Unit

_RANK = re.compile(r"([1-5])d$")
TENSOR_ALIGN = 128  # of the shared address of a tensor copy


def is_bulk(i: Instruction) -> bool:
    """Whether a `cp` is one of this family."""
    return i.has("bulk")


def cuts(i: Instruction) -> str:
    """A wait ends its segment."""
    return "after" if i.has("wait_group") else ""


def translate(e: Emitter, i: Instruction) -> None:
    """Translates cp.async.bulk and cp.reduce.async.bulk in all their forms."""
    if i.has("prefetch"):
        return
    if i.has("commit_group"):
        with e.active() as mask:
            e.do(f"{e.use(_commit)}(c, u, {mask})")
    elif i.has("wait_group"):
        count = i.operands[0]
        if not isinstance(count, Imm):
            raise Unknown("a wait of no constant count")
        with e.active() as mask:
            e.do(f"{e.use(_wait)}(c, u, {mask}, {count.value}, {e.index})")
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
            f"{e.use(_start_load)}(c, u, {mask}, {e.index}, {destination}, {source}, {size}, "
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
            f"{e.use(_start_store)}(c, u, {mask}, {e.index}, {target}, {size}, {source}, "
            f"{operation!r}, {kind!r})"
        )


# -- places ----------------------------------------------------------------------------------------


def _read_map(c: Chunk, u: Unit, index: int, lane: int, address: int) -> TensorMap:
    """The tensor map a kernel passed as a parameter, or keeps in global memory."""
    at = address - PARAM_WINDOW
    if 0 <= at <= c.kernel.param_bytes - 128:
        raw = c.params[at : at + 128].tobytes()
    elif c.memory.holds(address, address + 128):
        raw = c.memory.read(address, 128).tobytes()
    else:
        raw = b""
    found = decode_tensor_map(raw)
    if found is None or address % 64:
        message = "no tensor map lies at this address (128 bytes, aligned to 64)"
        c.fault("tensor map", message, index, u, lane=lane, address=address)
    return found


def _places(
    c: Chunk, u: Unit, index: int, lanes: NDArray[np.intp], at: Any, size: Any
) -> list[tuple[NDArray[np.intp], Place]]:
    """Transfers by tensor map (or by size): positions among the lanes, and their places."""
    base = at_lanes(at, lanes)
    kinds = base if isinstance(size, tuple) else at_lanes(size, lanes)
    found = []
    for kind in np.unique(kinds).tolist():
        entries = np.flatnonzero(kinds == kind)
        lane = int(lanes[entries[0]])
        if isinstance(size, tuple):
            tensor = _read_map(c, u, index, lane, kind)
            if tensor.rank != len(size):
                message = f"{len(size)} coordinates for a map of rank {tensor.rank}"
                c.fault("tensor map", message, index, u, lane=lane, address=kind)
            corner = np.stack([at_lanes(x, lanes[entries]) for x in size], axis=1)
            place = Place(tensor.box_bytes, tensor, corner)
            crooked = corner[:, 0] * tensor.element_bytes % CHUNK_BYTES != 0
            if crooked.any():  # H200: an illegal instruction
                entry = int(crooked.argmax())
                message = f"innermost coordinate {int(corner[entry, 0])} is no multiple of 16 bytes"
                c.fault("misaligned", message, index, u, lane=int(lanes[entries[entry]]))
        else:
            if kind % CHUNK_BYTES or kind <= 0:
                message = f"{kind} bytes: a bulk copy moves a positive multiple of 16"
                c.fault("bulk size", message, index, u, lane=lane)
            place = Place(kind, None, base[entries][:, None])
        found.append((entries, place))
        _check_global(c, u, index, lanes[entries], place)
    return found


def _check_global(c: Chunk, u: Unit, index: int, lanes: NDArray[np.intp], place: Place) -> None:
    """Every element that exists lies in a live buffer."""
    address, exists, dtype = place.elements()
    if place.tensor is None and (address % CHUNK_BYTES).any():
        lane = int(lanes[int((address % CHUNK_BYTES).any(axis=1).argmax())])
        c.fault("misaligned", "the global address is not a multiple of 16", index, u, lane=lane)
    inside = address[exists]
    if not inside.size or c.memory.holds(int(inside.min()), int(inside.max()) + dtype.itemsize):
        return
    outside = np.zeros(exists.shape, np.bool_)
    outside[exists] = c.memory.outside(inside.astype(np.uint64), dtype.itemsize)
    if outside.any():
        entry = int(outside.any(axis=1).argmax())
        at = int(address[entry][outside[entry]][0])
        message = f"a bulk copy touches bytes outside {c.memory.nearest(at)}"
        c.fault("out of bounds", message, index, u, lane=int(lanes[entry]), address=at)


def _check_smem(
    c: Chunk, u: Unit, index: int, lanes: NDArray[np.intp], address: Ints, place: Place
) -> None:
    align = TENSOR_ALIGN if place.tensor is not None else CHUNK_BYTES
    crooked = address % align != 0
    outside = (address < SHARED_BASE) | (address + place.n_bytes > c.limit)
    for bad, kind, message in (
        (crooked, "misaligned", f"the shared address of this copy is a multiple of {align}"),
        (outside, "out of bounds", f"{place.n_bytes} bytes outside shared memory"),
    ):
        if bad.any():
            entry = int(bad.argmax())
            c.fault(kind, message, index, u, lane=int(lanes[entry]), address=int(address[entry]))


# -- loads ----------------------------------------------------------------------------------------


def _start_load(
    c: Chunk, u: Unit, m: Mask, index: int, destination: Any, source: Any, size: Any,
    barrier: Any, multicast: Any,
) -> None:  # fmt: skip
    lanes = active_lanes(u, m)
    for entries, place in _places(c, u, index, lanes, source, size):
        mine = lanes[entries]
        block, address = cluster_target(c, u.lane_block[mine], at_lanes(destination, mine))
        owner, at = cluster_target(c, u.lane_block[mine], at_lanes(barrier, mine))
        if multicast is not None:
            copies, block = _targets(c, u, mine, at_lanes(multicast, mine))
            mine, address, at, place = (
                mine[copies],
                address[copies],
                at[copies],
                place.select(copies),
            )
            owner = block
        _check_smem(c, u, index, mine, address, place)
        find_barrier(c, u, index, mine, owner, at, fenced=True)
        if (owner != block).any():
            c.fault("cluster", "destination and barrier lie in different blocks", index, u)
        offsets = smem_chunks(c, block, address, place)
        places = None
        if c.shadow is not None:
            access = Access(c, u, index, u.lane_block[mine], u.lane_warp[mine], mine, offsets)
            places = check_write(access)
            away = block != u.lane_block[mine]
            if away.any():
                lifetimes = AsyncState.of(c).lifetimes
                lifetimes.touch(block[away], u.lane_block[mine][away], u.lane_warp[mine][away])
            agent = AsyncState.of(c).agent(0)
            c.tick(index)
            rows_of(c.shadow, c.shadow.tags)[places] = IN_FLIGHT | agent
        c.flights.append(LoadFlight(index, place, block, offsets, at, places))


def _targets(c: Chunk, u: Unit, lanes: Any, masks: Ints) -> tuple[NDArray[np.intp], Ints]:
    """Multicast: which transfer each copy repeats, and the block it goes to."""
    bits = masks[:, None] >> np.arange(16) & 1
    copies, rank = np.nonzero(bits)
    first = u.lane_block[lanes] // c.cluster * c.cluster
    return copies, first[copies] + rank


# -- stores ----------------------------------------------------------------------------------------


class BulkGroups:
    """Groups of each thread: how many were committed, what flies, what still reads."""

    def __init__(self, c: Chunk) -> None:
        self.chunk = c
        self.committed = np.zeros(len(c.blocks) * c.warps * 32, np.int64)
        self.flights: list[StoreFlight] = []
        self.readers = Readers(c)
        c.on_exit.append(self._exited)

    @staticmethod
    def of(c: Chunk) -> BulkGroups:
        """The groups of a chunk."""
        found = c.state.get("bulk groups")
        if found is None:
            found = c.state["bulk groups"] = BulkGroups(c)
        assert isinstance(found, BulkGroups)
        return found

    def _exited(self, u: Unit) -> None:
        """Shared memory goes with the block, so a thread may not end before its stores are read."""
        if self.chunk.shadow is None:
            return
        lanes = active_lanes(u, u.mask)
        ending = _threads(self.chunk, u, lanes)
        for block, warp, key, _ in self.readers.pending:
            thread = (block * self.chunk.warps + warp) * 32 + key % 32
            late = np.flatnonzero(np.isin(ending, thread))
            if len(late):
                index = self.flights[-1].index if self.flights else 0
                message = "the thread ends, but no wait_group says that its bulk store was read"
                self.chunk.fault("bulk store", message, index, u, lane=int(lanes[late[0]]))


def _threads(c: Chunk, u: Unit, lanes: NDArray[np.intp]) -> Ints:
    thread: Ints = (u.lane_block[lanes] * c.warps + u.lane_warp[lanes]) * 32 + lanes % 32
    return thread


def _start_store(
    c: Chunk, u: Unit, m: Mask, index: int, target: Any, size: Any, source: Any,
    operation: str, kind: str,
) -> None:  # fmt: skip
    lanes = active_lanes(u, m)
    groups = BulkGroups.of(c)
    for entries, place in _places(c, u, index, lanes, target, size):
        mine = lanes[entries]
        address = at_lanes(source, mine)
        _check_smem(c, u, index, mine, address, place)
        block, warp = u.lane_block[mine], u.lane_warp[mine]
        offsets = smem_chunks(c, block, address, place)
        thread = _threads(c, u, mine)
        group = groups.committed[thread]
        if c.shadow is not None:
            # What lies outside the tensor is not stored: its place need not hold anything.
            inside = place.chunks_inside()
            first = np.take_along_axis(offsets, inside.argmax(axis=1)[:, None], axis=1)
            read, some = np.where(inside, offsets, first), inside.any(axis=1)
            access = Access(c, u, index, block[some], warp[some], mine[some], read[some])
            # The key of a reader holds its lane: groups are a thread's own.
            key = (group * 32 + mine % 32)[some]
            groups.readers.begin(block[some], warp[some], key, check_read(access))
        element = kind or (place.tensor.element_type if place.tensor else "")
        flight = StoreFlight(index, place, thread, group, offsets, operation, element)
        groups.flights.append(flight)
        c.flights.append(flight)


def _commit(c: Chunk, u: Unit, m: Mask) -> None:
    groups = BulkGroups.of(c)
    groups.committed[_threads(c, u, active_lanes(u, m))] += 1


def _wait(c: Chunk, u: Unit, m: Mask, count: int, index: int) -> None:
    groups = BulkGroups.of(c)
    lanes = active_lanes(u, m)
    thread = _threads(c, u, lanes)
    ends = np.full(len(groups.committed), -1, np.int64)
    ends[thread] = groups.committed[thread] - count
    position = np.full(len(groups.committed), -1, np.int64)
    position[thread] = lanes // 32
    waited: list[StoreFlight] = []
    pair_of: dict[int, Any] = {}
    for flight in groups.flights:
        if flight.landed:
            continue
        mine = flight.group < ends[flight.thread]
        if mine.any():
            pair_of[len(waited)] = np.unique(position[flight.thread[mine]])
            waited.append(flight)
    groups.flights = [f for f in groups.flights if not f.landed]
    if c.shadow is not None and groups.readers.pending:
        groups.readers.end(
            lambda block, warp, key: key // 32 < ends[(block * c.warps + warp) * 32 + key % 32],
            index,
        )
    if waited:
        u.wait = StoreWait(waited, u.pairs, pair_of)
