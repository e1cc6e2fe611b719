"""How accesses are counted: bank conflicts of shared memory, sectors of global memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from flashsmith.emulator.checks.counters import AccessCount
from flashsmith.emulator.machine.unit import Unit

if TYPE_CHECKING:
    from flashsmith.emulator.machine.chunk import Chunk

BANKS = 32  # of 4 bytes each
SECTOR_BYTES = 32


def _by_warp(
    u: Unit, lanes: NDArray[np.intp] | None, address: NDArray[Any]
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Addresses as rows of 32 lanes, and which of them access."""
    if lanes is None:
        return address.astype(np.int64).reshape(-1, 32), np.ones((u.pairs, 32), np.bool_)
    rows = np.zeros(32 * u.pairs, np.int64)
    active = np.zeros(32 * u.pairs, np.bool_)
    rows[lanes] = address.astype(np.int64)
    active[lanes] = True
    return rows.reshape(-1, 32), active.reshape(-1, 32)


def count_shared(
    c: Chunk,
    u: Unit,
    lanes: NDArray[np.intp] | None,
    address: NDArray[Any],
    n_bytes: int,
    index: int,
    what: str,
) -> None:
    """Counts wavefronts: 128 bytes a phase (all 32 lanes, 16 for 8 bytes, 8 for 16 bytes)."""
    assert c.counters is not None
    rows, active = _by_warp(u, lanes, address)
    group = min(32, 128 // n_bytes)
    count_phases(c, rows.reshape(-1, group), active.reshape(-1, group), max(n_bytes, 4), index)
    c.counters.bytes[what] += address.size * n_bytes
    line = c.kernel.instructions[index].line
    c.counters.shared[line].requests += int(active.any(axis=1).sum())


def count_phases(
    c: Chunk,
    phases: NDArray[np.int64],
    active: NDArray[np.bool_],
    n_bytes: int,
    index: int,
) -> None:
    """Counts rows of accesses that are served together; each has `n_bytes` (a multiple of 4)."""
    assert c.counters is not None
    used = active.any(axis=1)
    phases, active = phases[used], active[used]
    words = (phases // 4)[:, :, None] + np.arange(n_bytes // 4)
    flat = np.where(active[:, :, None], words, -1).reshape(len(phases), -1)
    ordered = np.sort(flat, axis=1)
    fresh = np.ones_like(ordered, dtype=np.bool_)
    fresh[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    fresh &= ordered >= 0  # the same word twice is one broadcast
    row = np.repeat(np.arange(len(phases)), ordered.shape[1]).reshape(ordered.shape)
    load = np.bincount(
        (row * BANKS + ordered % BANKS)[fresh], minlength=len(phases) * BANKS
    ).reshape(-1, BANKS)
    count = c.counters.shared.setdefault(c.kernel.instructions[index].line, AccessCount())
    count.phases += len(phases)
    count.extra += int((load.max(axis=1) - 1).sum()) if len(phases) else 0


def count_global(
    c: Chunk,
    u: Unit,
    lanes: NDArray[np.intp] | None,
    address: NDArray[Any],
    n_bytes: int,
    index: int,
    what: str,
) -> None:
    """Counts requests (a warp each) and the different 32-byte sectors they touch."""
    assert c.counters is not None
    rows, active = _by_warp(u, lanes, address)
    first = np.where(active, rows // SECTOR_BYTES, -1)
    ordered = np.sort(first, axis=1)
    fresh = np.ones_like(ordered, dtype=np.bool_)
    fresh[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    line = c.kernel.instructions[index].line
    c.counters.sectors[line] += int((fresh & (ordered >= 0)).sum())
    c.counters.requests[line] += int(active.any(axis=1).sum())
    c.counters.bytes[what] += address.size * n_bytes
