"""The emulator's tensor map: 128 bytes that say where a tensor lies and which box a TMA moves.

The fields are those of cuTensorMapEncodeTiled, the byte layout is our own: the hardware's is not
public, and a kernel only passes the object on. Innermost dimension first, everywhere.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flashsmith.base.errors import ArgumentError

MAGIC = 0x50414D54  # "TMAP": a parameter that is no tensor map is told apart
RANKS = range(1, 6)
SWIZZLES = (0, 32, 64, 128)
ELEMENT_TYPES = ("u8", "u16", "u32", "s32", "u64", "s64", "f16", "f32", "f64", "bf16")
DEFAULT_TYPES = {1: "u8", 2: "bf16", 4: "f32", 8: "u64"}
_LAYOUT = struct.Struct("<IBBBB Q 5I 5Q 5I 32x")  # 128 bytes


@dataclass(frozen=True, slots=True)
class TensorMap:
    """A tensor in global memory and the box that one instruction moves."""

    address: int
    element_bytes: int
    dims: tuple[int, ...]
    strides_bytes: tuple[int, ...]  # of every dimension; the first is the element
    box: tuple[int, ...]
    swizzle_bytes: int
    element_type: str

    @property
    def rank(self) -> int:
        """Number of dimensions, 1 to 5."""
        return len(self.dims)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row of the box in shared memory."""
        return self.box[0] * self.element_bytes

    @property
    def box_bytes(self) -> int:
        """Bytes of the whole box: what a load adds to its barrier, in bounds or not."""
        return self.row_bytes * prod(self.box[1:])

    @property
    def rows(self) -> int:
        """Rows of the box: the product of all its extents but the innermost."""
        return prod(self.box[1:])


def encode_tensor_map(
    address: int,
    element_bytes: int,
    dims: tuple[int, ...],
    strides_bytes: tuple[int, ...],
    box: tuple[int, ...],
    swizzle_bytes: int,
    element_type: str | None = None,
) -> bytes:
    """128 bytes for a kernel parameter; `strides_bytes` are of dimensions 1 and up."""
    kind = element_type or DEFAULT_TYPES.get(element_bytes, "")
    refusal = _refusal(address, element_bytes, dims, strides_bytes, box, swizzle_bytes, kind)
    if refusal:
        raise ArgumentError(f"tensor map: {refusal}.")
    rank = len(dims)
    pad = (0,) * (5 - rank)
    strides = (element_bytes, *strides_bytes)
    code = ELEMENT_TYPES.index(kind)
    return _LAYOUT.pack(
        MAGIC, rank, element_bytes, swizzle_bytes, code, address, *dims, *pad, *strides, *pad,
        *box, *pad,
    )  # fmt: skip


def decode_tensor_map(raw: bytes) -> TensorMap | None:
    """The map these 128 bytes hold, or None when they hold none."""
    if len(raw) != _LAYOUT.size:
        return None
    magic, rank, element_bytes, swizzle, code, address, *numbers = _LAYOUT.unpack(raw)
    if magic != MAGIC or rank not in RANKS or code >= len(ELEMENT_TYPES):
        return None
    dims, strides, box = numbers[:rank], numbers[5 : 5 + rank], numbers[10 : 10 + rank]
    return TensorMap(
        address, element_bytes, tuple(dims), tuple(strides), tuple(box), swizzle,
        ELEMENT_TYPES[code],
    )  # fmt: skip


def _refusal(
    address: int,
    element_bytes: int,
    dims: tuple[int, ...],
    strides: tuple[int, ...],
    box: tuple[int, ...],
    swizzle: int,
    kind: str,
) -> str:
    """Why the driver's encoder would refuse this map, or an empty text."""
    rank = len(dims)
    if rank not in RANKS or len(box) != rank or len(strides) != rank - 1:
        return f"{rank} dims, {len(box)} box extents, {len(strides)} strides; there must be 1 to 5 dims, an equal number of box extents and one stride fewer"  # noqa: E501
    if kind not in ELEMENT_TYPES or element_bytes not in DEFAULT_TYPES:
        return f"elements of {element_bytes} bytes and type {kind!r}; take 1, 2, 4 or 8 bytes"
    if address % 16:
        return f"address {address:#x} is not a multiple of 16; align the tensor"
    if any(not 1 <= d <= 2**32 - 1 for d in dims):
        return f"dims {dims}: each lies in 1 .. 2**32 - 1"
    if any(s % 16 or not 0 < s < 2**40 for s in strides):
        return f"strides {strides}: each is a positive multiple of 16 bytes below 2**40"
    if any(not 1 <= b <= 256 for b in box):
        return f"box {box}: each extent lies in 1 .. 256"
    if swizzle not in SWIZZLES:
        return f"swizzle {swizzle}: one of {SWIZZLES} bytes is needed"
    row = box[0] * element_bytes
    if row % 16 or (swizzle and row > swizzle):
        return f"a box row of {row} bytes with swizzle {swizzle}: rows are multiples of 16 bytes, at most the swizzle"  # noqa: E501
    return ""


def box_rows(
    tensor: TensorMap, start: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Global address of each row's first element, and whether the row lies in the tensor at all.

    `start` holds one corner a transfer, shape (transfers, rank); the results have the shape
    (transfers, rows). Rows are in the order of shared memory: dimension 1 runs fastest. The
    address takes the innermost coordinate as it is: elements left or right of the tensor are the
    business of `row_elements`.
    """
    address = tensor.address + start[:, 0] * tensor.element_bytes
    inside = np.ones((len(start), 1), np.bool_)
    rows = address.reshape(-1, 1)
    for axis in range(1, tensor.rank):
        at = start[:, axis, None] + np.arange(tensor.box[axis])
        ok = (at >= 0) & (at < tensor.dims[axis])
        rows = (rows[:, None, :] + (at * tensor.strides_bytes[axis])[:, :, None]).reshape(
            len(start), -1
        )
        inside = (inside[:, None, :] & ok[:, :, None]).reshape(len(start), -1)
    return rows, inside


def row_elements(tensor: TensorMap, start: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which elements of a box row lie in the tensor's innermost dimension: (transfers, box[0])."""
    at: NDArray[np.int64] = start[:, 0, None] + np.arange(tensor.box[0])
    return (at >= 0) & (at < tensor.dims[0])


def element_view(tensor: TensorMap) -> np.dtype[Any]:
    """The unsigned numpy type of one element: what a copy moves."""
    return np.dtype(f"u{tensor.element_bytes}")
