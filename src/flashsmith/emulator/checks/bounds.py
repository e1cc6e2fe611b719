"""Whether accesses stay inside their memory and on their alignment, and where they fall."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from flashsmith.emulator.checks.shadow import Lanes
from flashsmith.emulator.machine.address_space import SHARED_BASE
from flashsmith.emulator.machine.unit import Unit

if TYPE_CHECKING:
    from flashsmith.emulator.machine.chunk import Chunk

SHIFT = {1: 0, 2: 1, 4: 2, 8: 3, 16: 4}  # of a size in bytes


def shared_offsets(
    c: Chunk, u: Unit, lanes: Lanes, address: NDArray[Any], n_bytes: int, index: int
) -> NDArray[np.int64]:
    """Byte offsets into the chunk's shared memory, after the checks of bounds and alignment."""
    if c.options.checks:
        check_shared_bounds(c, u, lanes, address, n_bytes, index)
    base: NDArray[np.int64] = u.cached("sbase", lambda: u.lane_cta * c.pitch)
    offsets: NDArray[np.int64] = (base if lanes is None else base[lanes]) + address
    return offsets


def check_shared_bounds(
    c: Chunk, u: Unit, lanes: Lanes, address: NDArray[Any], n_bytes: int, index: int
) -> None:
    """Faults on an address outside the cta's shared memory, or not a multiple of the size."""
    if int(np.bitwise_or.reduce(address, initial=0)) & (n_bytes - 1):
        refuse_misaligned(c, u, lanes, address, n_bytes, index)
    if int(address.max(initial=0)) + n_bytes > c.limit or int(address.min()) < SHARED_BASE:
        bad = (address < SHARED_BASE) | (address.astype(np.int64) + n_bytes > c.limit)
        position = int(np.flatnonzero(bad)[0])
        c.fault(
            "out of bounds",
            f"{n_bytes} bytes outside shared memory, which is {SHARED_BASE:#x} to {c.limit:#x}",
            index,
            u,
            lane=position if lanes is None else int(lanes[position]),
            address=int(address[position]),
        )


def check_global_bounds(
    c: Chunk, u: Unit, lanes: Lanes, address: NDArray[Any], n_bytes: int, index: int
) -> None:
    """Faults on an address outside all buffers, or not a multiple of the size."""
    if int(np.bitwise_or.reduce(address, initial=0)) & (n_bytes - 1):
        refuse_misaligned(c, u, lanes, address, n_bytes, index)
    if not address.size or c.memory.holds(int(address.min()), int(address.max()) + n_bytes):
        return
    bad = c.memory.outside(address, n_bytes)
    if bad.any():
        position = int(np.flatnonzero(bad)[0])
        at = int(address[position])
        c.fault(
            "out of bounds",
            f"{n_bytes} bytes outside {c.memory.nearest(at)}",
            index,
            u,
            lane=position if lanes is None else int(lanes[position]),
            address=at,
        )


def global_cells(
    c: Chunk, u: Unit, lanes: Lanes, address: NDArray[Any], n_bytes: int, index: int
) -> NDArray[np.int64]:
    """Positions in the arena's view of `n_bytes` cells, after the checks."""
    if c.options.checks or c.memory.is_sparse:  # what lies nowhere has no place in the arena
        check_global_bounds(c, u, lanes, address, n_bytes, index)
    cells = c.memory.offsets(address.view(np.int64)) >> SHIFT[n_bytes]
    if c.writes is not None:
        c.writes.touch(u, lanes, cells, n_bytes, index)
    return cells


def refuse_misaligned(
    c: Chunk, u: Unit, lanes: Lanes, address: NDArray[Any], n_bytes: int, index: int
) -> None:
    """Faults on the first lane whose address is not a multiple of the size."""
    bad = (address.astype(np.uint64) & np.uint64(n_bytes - 1)) != 0
    position = int(np.flatnonzero(bad)[0])
    c.fault(
        "misaligned",
        f"the address is not a multiple of {n_bytes}",
        index,
        u,
        lane=position if lanes is None else int(lanes[position]),
        address=int(address[position]),
    )
