"""Where bulk copies begin and end: tensor maps, sizes and addresses, checked at the start."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from flashsmith.emulator.copies.async_state import at_lanes
from flashsmith.emulator.copies.mbarrier import Ints
from flashsmith.emulator.copies.smem_layout import CHUNK_BYTES
from flashsmith.emulator.copies.tensor_map import TensorMap, decode_tensor_map
from flashsmith.emulator.copies.transfers import Place
from flashsmith.emulator.machine.address_space import PARAM_WINDOW, SHARED_BASE
from flashsmith.emulator.machine.values import Value

if TYPE_CHECKING:
    from flashsmith.emulator.machine.chunk import Chunk
    from flashsmith.emulator.machine.unit import Unit

TENSOR_ALIGN = 128  # of the shared address of a tensor copy


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


def transfer_places(
    c: Chunk,
    u: Unit,
    index: int,
    lanes: NDArray[np.intp],
    at: Value,
    size: Value,
    *,
    is_store: bool,
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
            place = Place(tensor.box_bytes, tensor, corner, is_store)
            _check_corner(c, u, index, lanes[entries], place)
        else:
            if kind % CHUNK_BYTES or kind <= 0:
                message = f"{kind} bytes: a bulk copy moves a positive multiple of 16"
                c.fault("bulk size", message, index, u, lane=lane)
            place = Place(kind, None, base[entries][:, None], is_store)
        found.append((entries, place))
        _check_global(c, u, index, lanes[entries], place)
    return found


def _check_corner(c: Chunk, u: Unit, index: int, lanes: NDArray[np.intp], place: Place) -> None:
    """What the H200 answers with an illegal instruction."""
    assert place.tensor is not None
    corner = place.start
    crooked = corner[:, 0] * place.tensor.element_bytes % CHUNK_BYTES != 0
    before = (corner < 0).any(axis=1) if place.is_store else np.zeros_like(crooked)
    for bad, kind, message in (
        (crooked, "misaligned", "innermost coordinate {} is not a multiple of 16 bytes"),
        (before, "out of bounds", "a store begins at coordinates {}, before the tensor"),
    ):
        if bad.any():
            entry = int(bad.argmax())
            found = corner[entry].tolist() if bad is before else int(corner[entry, 0])
            c.fault(kind, message.format(found), index, u, lane=int(lanes[entry]))


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


def global_chunks(c: Chunk, place: Place) -> list[Ints]:
    """The 16-byte cells of the arena that each transfer touches."""
    address, exists, _ = place.elements()
    if not exists.any():
        return [np.array([], np.int64)] * len(address)
    offsets = c.memory.offsets(np.where(exists, address, address[exists][:1]))
    cells = offsets // CHUNK_BYTES
    return [np.unique(row[there]) for row, there in zip(cells, exists, strict=True)]


def check_smem(
    c: Chunk, u: Unit, index: int, lanes: NDArray[np.intp], address: Ints, place: Place
) -> None:
    """Faults on a shared address that is crooked, or whose bytes are not there."""
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
