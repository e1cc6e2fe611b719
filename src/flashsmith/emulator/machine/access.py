"""Loads and stores of lanes in every state space, checked and counted when asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from flashsmith.emulator.checks.bounds import (
    SHIFT,
    check_shared_bounds,
    global_cells,
    refuse_misaligned,
    shared_offsets,
)
from flashsmith.emulator.checks.counting import count_global, count_shared
from flashsmith.emulator.checks.shadow import Lanes
from flashsmith.emulator.checks.undefined import (
    Undefined,
    require_defined_value,
    undefined_lanes,
)
from flashsmith.emulator.copies.async_state import cluster_target
from flashsmith.emulator.machine.address_space import (
    LOCAL_WINDOW,
    PARAM_WINDOW,
    SHARED_WINDOW,
    WINDOW_BYTES,
)
from flashsmith.emulator.machine.unit import Unit
from flashsmith.emulator.machine.values import ScalarClass, Value

if TYPE_CHECKING:
    from flashsmith.emulator.machine.chunk import Chunk

UINT: dict[int, ScalarClass] = {
    1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64, 16: np.complex128,
}  # fmt: skip
Mask = NDArray[np.bool_] | None


def load(c: Chunk, u: Unit, m: Mask, space: str, address: Value, n_bytes: int, index: int) -> Value:
    """What lies at the lanes' addresses; 16 bytes come as complex128 (bits, not numbers)."""
    if isinstance(address, Undefined):
        require_defined_value(c, u, m, address, index)
    if space == "global" and address.ndim == 0:
        return _load_uniform(c, u, address, n_bytes, index)
    address = u.array(address)
    if m is None:
        return LOADS[space](c, u, None, address, n_bytes, index)
    lanes = np.flatnonzero(m)
    out = np.zeros(address.size, UINT[n_bytes])
    out[lanes] = LOADS[space](c, u, lanes, address[lanes], n_bytes, index)
    return out


def store(
    c: Chunk, u: Unit, m: Mask, space: str, address: Value, value: Value, n_bytes: int, index: int
) -> None:
    """Writes the lanes' values to their addresses."""
    if isinstance(address, Undefined):
        require_defined_value(c, u, m, address, index)
    undefined = undefined_lanes(value, m)
    if undefined is not None and space != "shared":
        require_defined_value(c, u, m, value, index)
    address, value = u.array(address), u.array(value)
    if m is None:
        STORES[space](c, u, None, address, value, n_bytes, index)
    else:
        lanes = np.flatnonzero(m)
        STORES[space](c, u, lanes, address[lanes], value[lanes], n_bytes, index)
    if undefined is not None and c.shadow is not None:
        lanes = np.flatnonzero(undefined)
        c.shadow.forget(shared_offsets(c, u, lanes, address[lanes], n_bytes, index), n_bytes)


# -- shared ---------------------------------------------------------------------------------------


def _load_shared(
    c: Chunk, u: Unit, lanes: Lanes, address: NDArray[Any], n_bytes: int, index: int
) -> NDArray[Any]:
    offsets = shared_offsets(c, u, lanes, address, n_bytes, index)
    if c.shadow is not None:
        c.shadow.read(u, lanes, offsets, n_bytes, index)
    if c.counters is not None:
        count_shared(c, u, lanes, address, n_bytes, index, "shared load")
    return c.shared_views[n_bytes].take(offsets >> SHIFT[n_bytes])


def _store_shared(
    c: Chunk,
    u: Unit,
    lanes: Lanes,
    address: NDArray[Any],
    value: NDArray[Any],
    n_bytes: int,
    index: int,
) -> None:
    offsets = shared_offsets(c, u, lanes, address, n_bytes, index)
    if c.shadow is not None:
        c.shadow.write(u, lanes, offsets, n_bytes, index)
    if c.counters is not None:
        count_shared(c, u, lanes, address, n_bytes, index, "shared store")
    c.shared_views[n_bytes][offsets >> SHIFT[n_bytes]] = value


# -- shared memory of the cluster -----------------------------------------------------------------


def _cluster_offsets(
    c: Chunk, u: Unit, lanes: Lanes, address: NDArray[Any], n_bytes: int, index: int
) -> NDArray[np.int64]:
    positions = np.arange(32 * u.pairs) if lanes is None else lanes
    cta, at = cluster_target(c, u.lane_cta[positions], address.astype(np.int64))
    check_shared_bounds(c, u, lanes, at, n_bytes, index)
    return np.asarray(cta * c.pitch + at)


def _load_cluster(
    c: Chunk, u: Unit, lanes: Lanes, address: NDArray[Any], n_bytes: int, index: int
) -> NDArray[Any]:
    offsets = _cluster_offsets(c, u, lanes, address, n_bytes, index)
    return c.shared_views[n_bytes].take(offsets >> SHIFT[n_bytes])


def _store_cluster(
    c: Chunk,
    u: Unit,
    lanes: Lanes,
    address: NDArray[Any],
    value: NDArray[Any],
    n_bytes: int,
    index: int,
) -> None:
    offsets = _cluster_offsets(c, u, lanes, address, n_bytes, index)
    c.shared_views[n_bytes][offsets >> SHIFT[n_bytes]] = value
    if c.shadow is not None:  # clocks are a cta's own: what a neighbour wrote counts as known
        c.shadow.land(np.zeros(len(offsets), np.int64), offsets, n_bytes, 0)


# -- global ---------------------------------------------------------------------------------------


def _load_uniform(c: Chunk, u: Unit, address: Value, n_bytes: int, index: int) -> Value:
    cells = global_cells(c, u, None, np.asarray(address).reshape(1), n_bytes, index)
    if c.sums is not None:
        c.sums.settle(cells, n_bytes)
    if c.counters is not None:
        count_global(c, u, None, u.array(address), n_bytes, index, "global load")
    return c.memory.views[n_bytes][int(cells[0])]


def take_global(
    c: Chunk, u: Unit, lanes: Lanes, address: NDArray[Any], n_bytes: int, index: int
) -> NDArray[Any]:
    """What lies at the lanes' addresses in global memory."""
    cells = global_cells(c, u, lanes, address, n_bytes, index)
    if c.sums is not None:
        c.sums.settle(cells, n_bytes)
    return c.memory.views[n_bytes].take(cells)


def _load_global(
    c: Chunk, u: Unit, lanes: Lanes, address: NDArray[Any], n_bytes: int, index: int
) -> NDArray[Any]:
    if c.counters is not None:
        count_global(c, u, lanes, address, n_bytes, index, "global load")
    return take_global(c, u, lanes, address, n_bytes, index)


def _store_global(
    c: Chunk,
    u: Unit,
    lanes: Lanes,
    address: NDArray[Any],
    value: NDArray[Any],
    n_bytes: int,
    index: int,
) -> None:
    cells = global_cells(c, u, lanes, address, n_bytes, index)
    if c.counters is not None:
        count_global(c, u, lanes, address, n_bytes, index, "global store")
    if c.writes is not None:
        c.writes.overwritten(cells, n_bytes)
    if c.sums is not None:
        c.sums.settle(cells, n_bytes)
    c.memory.views[n_bytes][cells] = value


# -- local and parameters -------------------------------------------------------------------------


def _local_cells(
    c: Chunk, u: Unit, lanes: Lanes, address: NDArray[Any], n_bytes: int, index: int
) -> NDArray[np.int64]:
    size = c.local.shape[1]
    if c.options.checks:
        if int(np.bitwise_or.reduce(address, initial=0)) & (n_bytes - 1):
            refuse_misaligned(c, u, lanes, address, n_bytes, index)
        if address.size and int(address.max()) + n_bytes > size:
            position = int(address.argmax())
            c.fault(
                "out of bounds",
                f"{n_bytes} bytes outside local memory of {size} bytes",
                index,
                u,
                lane=position if lanes is None else int(lanes[position]),
                address=int(address[position]),
            )
    row = (u.lane_cta * c.warps + u.lane_warp) * 32 + np.arange(32 * u.pairs) % 32
    offsets = (row if lanes is None else row[lanes]) * size + address.astype(np.int64)
    return offsets >> SHIFT[n_bytes]


def _load_local(
    c: Chunk, u: Unit, lanes: Lanes, address: NDArray[Any], n_bytes: int, index: int
) -> NDArray[Any]:
    cells = _local_cells(c, u, lanes, address, n_bytes, index)
    _count_bytes(c, "local load", address.size * n_bytes)
    return np.asarray(c.local.reshape(-1).view(UINT[n_bytes]).take(cells))


def _store_local(
    c: Chunk,
    u: Unit,
    lanes: Lanes,
    address: NDArray[Any],
    value: NDArray[Any],
    n_bytes: int,
    index: int,
) -> None:
    cells = _local_cells(c, u, lanes, address, n_bytes, index)
    _count_bytes(c, "local store", address.size * n_bytes)
    c.local.reshape(-1).view(UINT[n_bytes])[cells] = value


def _count_bytes(c: Chunk, what: str, n_bytes: int) -> None:
    if c.counters is not None:
        c.counters.bytes[what] += n_bytes


def _load_param(
    c: Chunk, u: Unit, lanes: Lanes, address: NDArray[Any], n_bytes: int, index: int
) -> NDArray[Any]:
    offsets = address.astype(np.uint64)
    offsets = np.where(offsets >= PARAM_WINDOW, offsets - np.uint64(PARAM_WINDOW), offsets)
    if int(offsets.max(initial=0)) + n_bytes > c.kernel.param_bytes:
        c.fault(
            "out of bounds",
            f"{n_bytes} bytes outside the {c.kernel.param_bytes} bytes of parameters",
            index,
            u,
            address=int(offsets.max()),
        )
    rows = offsets.astype(np.int64)[:, None] + np.arange(n_bytes)
    return np.asarray(np.ascontiguousarray(c.params[rows]).view(UINT[n_bytes]).reshape(-1))


# -- generic --------------------------------------------------------------------------------------

_WINDOWS = (("shared", SHARED_WINDOW), ("local", LOCAL_WINDOW), ("param", PARAM_WINDOW))


def _by_window(address: NDArray[Any]) -> list[tuple[str, int, NDArray[np.intp]]]:
    """State space, window base and positions of the accesses that fall into each window."""
    parts = []
    rest = np.ones(address.size, np.bool_)
    for space, base in _WINDOWS:
        inside = (address >= base) & (address < base + WINDOW_BYTES)
        if inside.any():
            parts.append((space, base, np.flatnonzero(inside)))
            rest &= ~inside
    if rest.any():
        parts.append(("global", 0, np.flatnonzero(rest)))
    return parts


def _space_address(address: NDArray[Any], space: str, base: int) -> NDArray[Any]:
    moved = address - np.uint64(base)
    return moved.astype(np.uint32) if space == "shared" else moved


def _load_generic(
    c: Chunk, u: Unit, lanes: Lanes, address: NDArray[Any], n_bytes: int, index: int
) -> NDArray[Any]:
    out = np.zeros(address.size, UINT[n_bytes])
    for space, base, at in _by_window(address):
        where = at if lanes is None else lanes[at]
        moved = _space_address(address[at], space, base)
        out[at] = LOADS[space](c, u, where, moved, n_bytes, index)
    return out


def _store_generic(
    c: Chunk,
    u: Unit,
    lanes: Lanes,
    address: NDArray[Any],
    value: NDArray[Any],
    n_bytes: int,
    index: int,
) -> None:
    for space, base, at in _by_window(address):
        where = at if lanes is None else lanes[at]
        moved = _space_address(address[at], space, base)
        STORES[space](c, u, where, moved, value[at], n_bytes, index)


LOADS: dict[str, Callable[..., Value]] = {
    "shared": _load_shared, "global": _load_global, "local": _load_local, "param": _load_param,
    "const": _load_global, "generic": _load_generic, "cluster": _load_cluster,
}  # fmt: skip
STORES: dict[str, Callable[..., None]] = {
    "shared": _store_shared, "global": _store_global, "local": _store_local,
    "generic": _store_generic, "cluster": _store_cluster,
}  # fmt: skip
