"""Inputs of a case as NumPy arrays or torch tensors, lying in memory in all the usual ways."""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np
from numpy.lib.stride_tricks import as_strided

from flashsmith.base.dtypes import DType
from flashsmith.check.cases import Case, inputs_of
from flashsmith.check.tolerance import distance, expectation_of

NUMPY_TYPES = {DType.FP16: np.dtype(np.float16), DType.BF16: np.dtype(ml_dtypes.bfloat16)}
MEMORY_ORDERS = {
    "bshd": (0, 1, 2, 3),
    "bhsd": (0, 2, 1, 3),
    "sbhd": (1, 0, 2, 3),
    "bsdh": (0, 1, 3, 2),  # the last dimension is not contiguous: must be copied
}


@dataclass(frozen=True)
class Placement:
    """How an array lies: the order of dimensions in memory, and gaps, counted in elements."""

    order: str = "bshd"
    row_gap: int = 0  # behind each run of the innermost dimension; multiples of 8 need no copy
    start: int = 0  # in front of everything; multiples of 8 need no copy
    skip: int = 1  # rows of memory a row of the array: 2 for every second one

    @property
    def is_read_in_place(self) -> bool:
        return self.order != "bsdh" and self.row_gap % 8 == 0 and self.start % 8 == 0


@dataclass(frozen=True)
class Placed:
    """Memory, and the shape and strides (in elements) of the array in it."""

    memory: np.ndarray
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    start: int

    def bits(self) -> np.ndarray:
        strides = [2 * stride for stride in self.strides]
        return as_strided(self.memory[self.start :], self.shape, strides)

    def numpy(self, dtype: DType) -> np.ndarray:
        return self.bits().view(NUMPY_TYPES[dtype])

    def torch(self, dtype: DType, device: str = "cpu"):
        import torch

        memory = torch.from_numpy(self.memory.view(np.int16)).to(device)
        kind = torch.float16 if dtype is DType.FP16 else torch.bfloat16
        return memory.view(kind).as_strided(self.shape, self.strides, self.start)


def place(bits: np.ndarray, placement: Placement, layout: str) -> Placed:
    """Puts a (batch, row, head, d) array into memory; its dimensions come back in `layout`."""
    order = MEMORY_ORDERS[placement.order]
    extents = [bits.shape[axis] for axis in order]
    inner = extents[3] + placement.row_gap
    memory_strides = [0, 0, inner * placement.skip, 1]
    memory_strides[1] = memory_strides[2] * extents[2]
    memory_strides[0] = memory_strides[1] * extents[1]
    strides = [0] * 4
    for axis, stride in zip(order, memory_strides, strict=True):
        strides[axis] = stride
    # NaN everywhere else: whoever reads a gap shows it.
    memory = np.full(placement.start + memory_strides[0] * extents[0] + 64, 0x7FFF, np.uint16)
    shape = bits.shape
    if layout == "bhsd":
        bits, shape = bits.transpose(0, 2, 1, 3), (shape[0], shape[2], shape[1], shape[3])
        strides = [strides[0], strides[2], strides[1], strides[3]]
    placed = Placed(memory, shape, tuple(strides), placement.start)
    placed.bits()[...] = bits
    return placed


def placed_inputs(case: Case, placement: Placement, layout: str) -> list[Placed]:
    return [place(bits, placement, layout) for bits in inputs_of(case).values() if bits.ndim == 4]


def require_right(case: Case, layout: str, out, lse=None) -> None:
    """Holds an output of the API against the truth, with the tolerance of check/."""
    out = np.asarray(out).astype(np.float32)
    o = out if layout == "bshd" else out.transpose(0, 2, 1, 3)
    expected = expectation_of(case)
    outputs = {"o": o} | ({} if lse is None else {"lse": np.asarray(lse)})
    for name, got in outputs.items():
        found = distance(name, expected[name], got)
        assert found.ok, f"{case}: {found}"
