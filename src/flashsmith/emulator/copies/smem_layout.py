"""Where matrix elements lie in shared memory: swizzles, and what a wgmma descriptor points at.

PTX ISA, "Asynchronous Warpgroup Level Matrix Shared Memory Layout" and "Matrix Descriptor Format".
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

CHUNK_BYTES = 16  # eight 16-bit elements: the unit of swizzles and of core matrices
SWIZZLE_OF_MODE = (0, 128, 64, 32)  # descriptor bits 62-63

_Address = TypeVar("_Address", int, NDArray[np.int64])


def swizzled(address: _Address, swizzle_bytes: int) -> _Address:
    """The physical address: bits 4 and up are XORed with bits 7 and up, 1, 2 or 3 of them."""
    if not swizzle_bytes:
        return address
    mask = swizzle_bytes // CHUNK_BYTES - 1
    return address ^ (((address >> 7) & mask) << 4)


@dataclass(frozen=True, slots=True)
class MatrixDescriptor:
    """The five fields of a 64-bit wgmma matrix descriptor, in bytes."""

    start: int
    leading_bytes: int
    stride_bytes: int
    base_offset: int
    swizzle_bytes: int

    @classmethod
    def decode(cls, bits: int) -> MatrixDescriptor:
        """Takes the 64 bits apart."""
        return cls(
            start=(bits & 0x3FFF) << 4,
            leading_bytes=(bits >> 16 & 0x3FFF) << 4,
            stride_bytes=(bits >> 32 & 0x3FFF) << 4,
            base_offset=bits >> 49 & 7,
            swizzle_bytes=SWIZZLE_OF_MODE[bits >> 62 & 3],
        )

    def encode(self) -> int:
        """The 64 bits again."""
        return (
            (self.start & 0x3FFFF) >> 4
            | (self.leading_bytes >> 4 & 0x3FFF) << 16
            | (self.stride_bytes >> 4 & 0x3FFF) << 32
            | self.base_offset << 49
            | SWIZZLE_OF_MODE.index(self.swizzle_bytes) << 62
        )


@lru_cache(maxsize=4096)
def operand_chunks(bits: int, extent: int, *, mn_major: bool, first: int = 0) -> NDArray[np.int64]:
    """Physical byte addresses of the 16-byte chunks of one 16-bit operand of a k16 step.

    `extent` rows (M or N) from row `first` on. K-major: shape (extent, 2), chunk c holds k 8c to
    8c + 7 of a row. MN-major: shape (16, extent / 8), chunk (k, c) holds rows 8c to 8c + 7 at
    that k. In units of chunks, with atom rows of 1, 2, 4 or 8 chunks (none, 32, 64, 128 bytes):

        K-major            ((8, rows/8), 2) : ((atom row, stride), 1; without swizzle leading)
        MN-major           ((atom row, rows), (8, 2)) : ((1, leading), (atom row, stride))
        MN-major, plain    ((1, rows), (8, 2)) : ((-, stride), (1, leading))
    """
    descriptor = MatrixDescriptor.decode(bits)
    swizzle = descriptor.swizzle_bytes
    leading, stride = descriptor.leading_bytes, descriptor.stride_bytes
    row_bytes = swizzle or CHUNK_BYTES
    if mn_major:
        chunk = np.arange(first // 8, (first + extent) // 8)
        k = np.arange(16)
        if swizzle:
            wide = row_bytes // CHUNK_BYTES
            across = chunk % wide * CHUNK_BYTES + chunk // wide * leading
            down = k % 8 * row_bytes + k // 8 * stride
        else:
            across = chunk * stride
            down = k % 8 * CHUNK_BYTES + k // 8 * leading
        offset = down[:, None] + across[None, :]
    else:
        row = np.arange(first, first + extent)
        step = CHUNK_BYTES if swizzle else leading
        offset = (row % 8 * row_bytes + row // 8 * stride)[:, None] + np.arange(2) * step
    address = swizzled((descriptor.start + offset).astype(np.int64), swizzle)
    address.flags.writeable = False
    return address
