"""cp.async and its groups."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from flashsmith.emulator.checks.bounds import SHIFT, shared_offsets
from flashsmith.emulator.checks.counting import count_global, count_shared
from flashsmith.emulator.copies.copy_groups import Copy, CopyGroups
from flashsmith.emulator.machine.access import UINT, take_global
from flashsmith.emulator.machine.emit import Emitter
from flashsmith.emulator.machine.opcode import Unknown, opcode
from flashsmith.emulator.machine.unit import Unit
from flashsmith.emulator.machine.values import Value
from flashsmith.emulator.ops import bulk_copy
from flashsmith.emulator.ops.bulk_copy import group_count
from flashsmith.emulator.ptx.instruction import Imm, Instruction

if TYPE_CHECKING:
    from flashsmith.emulator.machine.chunk import Chunk


@opcode(
    "cp", writes=0, counts_as="async copy", touches_memory=True,
    cuts=lambda i: bulk_copy.cuts(i) if i.has("bulk") else "",
)  # fmt: skip
def emit_cp(e: Emitter, i: Instruction) -> None:
    """cp.async, its commit_group and waits; bulk copies have a module of their own."""
    if i.has("bulk"):
        bulk_copy.translate(e, i)
    elif not i.has("async"):
        raise Unknown("this form of cp")
    elif i.has("commit_group"):
        with e.active() as mask:
            e.do(f"{e.use(commit)}(u, {mask})")
    elif i.has("wait_group") or i.has("wait_all"):
        keep = 0 if i.has("wait_all") else group_count(i)
        if i.has("wait_all"):
            e.do(f"{e.use(commit)}(u, m)")
        with e.active() as mask:
            e.do(f"{e.use(wait)}(c, u, {mask}, {keep}, {e.index})")
    elif i.has("mbarrier"):
        raise Unknown("cp.async.mbarrier")
    else:
        _emit_copy(e, i)


def _emit_copy(e: Emitter, i: Instruction) -> None:
    destination, source, size = i.operands[:3]
    if not isinstance(size, Imm) or size.value not in (4, 8, 16):
        raise Unknown("a copy of other than 4, 8 or 16 bytes")
    extra = list(i.operands[3:])
    if i.has("L2::cache_hint"):
        extra.pop()
    real = e.read(extra[0], "u32") if extra else "None"
    with e.active() as mask:
        e.do(
            f"{e.use(start_copy)}(c, u, {mask}, {e.address(destination, 'shared')}, "
            f"{e.address(source, 'global')}, {size.value}, {real}, {e.index})"
        )


def start_copy(
    c: Chunk,
    u: Unit,
    m: Value,
    destination: Value,
    source: Value,
    n_bytes: int,
    real: Value,
    index: int,
) -> None:
    """Starts copies of `n_bytes` a lane, of which `real` are read and the rest is zero."""
    destination, source = u.array(destination), u.array(source)
    lanes = None
    if m is not None:
        lanes = np.flatnonzero(m)
        destination, source = destination[lanes], source[lanes]
    offsets = shared_offsets(c, u, lanes, destination, n_bytes, index)
    if c.shadow is not None:
        c.shadow.begin_flight(u, lanes, offsets, n_bytes, index)
    if real is None:
        data = take_global(c, u, lanes, source, n_bytes, index)
        counted, read = lanes, source
    else:
        data, counted, read = _partial(c, u, lanes, source, n_bytes, real, index)
    if c.counters is not None:
        count_shared(c, u, lanes, destination, n_bytes, index, "shared store")
        count_global(c, u, counted, read, n_bytes, index, "global load")
    state = u.state.get("copies")
    if state is None:
        state = u.state["copies"] = CopyGroups()
    assert isinstance(state, CopyGroups)
    state.open.append(Copy(offsets, data, lanes, n_bytes, index))


def _partial(
    c: Chunk, u: Unit, lanes: Value, source: Value, n_bytes: int, real: Value, index: int
) -> tuple[Value, Value, Value]:
    """Data, lanes and addresses of copies that may read fewer bytes than they write."""
    real = u.array(real)
    positions = np.arange(32 * u.pairs) if lanes is None else lanes
    size = real[positions].astype(np.int64)
    if (size > n_bytes).any():
        at = int(np.flatnonzero(size > n_bytes)[0])
        c.fault(
            "bad copy", f"src-size {int(size[at])} of {n_bytes} bytes", index, u,
            lane=int(positions[at]),
        )  # fmt: skip
    data = np.zeros(positions.size, UINT[n_bytes])
    some = size > 0
    reading = positions[some]
    if reading.size:
        data[some] = take_global(c, u, reading, source[some], n_bytes, index)
    odd = some & (size < n_bytes)
    if odd.any():
        raw = data.view(np.uint8).reshape(-1, n_bytes)
        raw[np.arange(n_bytes) >= size[:, None]] = 0
    return data, reading, source[some]


def commit(u: Unit, m: Value) -> None:
    """Closes the group of the copies started since the last commit."""
    state = u.state.get("copies")
    if state is None:
        state = u.state["copies"] = CopyGroups()
    assert isinstance(state, CopyGroups)
    state.groups.append(state.open)
    state.open = []


def wait(c: Chunk, u: Unit, m: Value, keep: int, index: int) -> None:
    """Lands all groups but the newest `keep`."""
    state = u.state.get("copies")
    if state is None:
        return
    assert isinstance(state, CopyGroups)
    while len(state.groups) > keep:
        group = state.groups.pop(0)
        if not group:
            continue
        time = c.tick(index)
        for copy in group:
            c.shared_views[copy.n_bytes][copy.offsets >> SHIFT[copy.n_bytes]] = copy.data
            if c.shadow is not None:
                agents = u.lane_warp if copy.lanes is None else u.lane_warp[copy.lanes]
                c.shadow.land(agents, copy.offsets, copy.n_bytes, time)
