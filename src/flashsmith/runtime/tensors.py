"""The tensors of a call on a device: up from buffers of the host, and back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from flashsmith.base.dtypes import DType, from_bits
from flashsmith.kernels.arguments import ScoresArg, TensorArg
from flashsmith.kernels.launch import Call
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.signature import WORD_BYTES, TensorRole, signature_of
from flashsmith.runtime.device import Device

# NaNs that no arithmetic makes: an element that still holds one was never written.
POISON = {DType.FP16: 0x7E5A, DType.BF16: 0x7FDA}
POISON_BOOL = 0x5A
STATISTICS_POISON = 0x7FC5A5A5
_BITS: dict[int, type[np.unsignedinteger[Any]]] = {
    1: np.uint8,
    2: np.uint16,
    4: np.uint32,
}  # by bytes of an element


def poison_of(role: TensorRole, problem: AttentionProblem) -> int:
    """The bits of a tensor that was never written; a bool is one of its own kind."""
    of_bytes = {1: POISON_BOOL, 2: POISON[problem.dtype], 4: STATISTICS_POISON}
    return of_bytes[role.element_bytes(problem)]


def bits_type(role: TensorRole, problem: AttentionProblem) -> type[np.unsignedinteger[Any]]:
    """The unsigned integers that hold a tensor's bits."""
    return _BITS[role.element_bytes(problem)]


def numbers_of(role: TensorRole, bits: NDArray[Any], problem: AttentionProblem) -> NDArray[Any]:
    """The numbers that a tensor's bits stand for: float32, or int32 of a table of them.

    Of a bool bias 1 and 0.
    """
    if role.element_bytes(problem) == 1:
        return np.asarray(bits != 0, np.float32)
    if role.element_bytes(problem) == WORD_BYTES:
        return np.ascontiguousarray(bits).view(np.int32 if role.is_integer else np.float32)
    return from_bits(bits, problem.dtype)


@dataclass(frozen=True, slots=True)
class Location:
    """A tensor inside a buffer, indexed (batch, row, head, d); everything counts elements.

    One with a number a row is (batch, head, row) and contiguous, and so is a table.
    """

    buffer: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # of all dimensions but the last, whose stride is 1

    @property
    def end(self) -> int:
        """One past the last element."""
        if 0 in self.shape:
            return self.offset
        last = sum((n - 1) * s for n, s in zip(self.shape, (*self.strides, 1), strict=True))
        return self.offset + last + 1

    def view(self, buffer: NDArray[Any]) -> NDArray[Any]:
        """The tensor in its buffer."""
        strides = tuple(stride * buffer.itemsize for stride in (*self.strides, 1))
        return as_strided(buffer[self.offset :], self.shape, strides)

    def arg(self, address: int, element_bytes: int) -> TensorArg:
        """What a kernel is told, when the buffer lies at `address`."""
        start = address + self.offset * element_bytes
        return TensorArg(start, *self.strides) if len(self.shape) == 4 else TensorArg(start)


@dataclass(frozen=True, slots=True)
class ScoresLocation(Location):
    """A tensor with an element a score, indexed (batch, head, row, key), of any strides."""

    key_stride: int = 1

    @property
    def end(self) -> int:
        """One past the last element."""
        if 0 in self.shape:
            return self.offset
        strides = (*self.strides, self.key_stride)
        return self.offset + sum((n - 1) * s for n, s in zip(self.shape, strides, strict=True)) + 1

    def view(self, buffer: NDArray[Any]) -> NDArray[Any]:
        """The tensor in its buffer; broadcast elements are the same memory."""
        strides = tuple(stride * buffer.itemsize for stride in (*self.strides, self.key_stride))
        return as_strided(buffer[self.offset :], self.shape, strides)

    def arg(self, address: int, element_bytes: int) -> ScoresArg:
        """What a kernel is told, when the buffer lies at `address`."""
        batch, head, row = self.strides
        return ScoresArg(address + self.offset * element_bytes, batch, row, head, self.key_stride)


def contiguous(buffer: str, shape: tuple[int, ...], offset: int = 0) -> Location:
    """A tensor without gaps."""
    strides = [1]
    for extent in reversed(shape[1:]):
        strides.insert(0, strides[0] * extent)
    return Location(buffer, offset, shape, tuple(strides[:-1]))


class Uploaded:
    """Buffers on a device and the call on the tensors in them."""

    def __init__(self, device: Device, buffers: Mapping[str, NDArray[Any]]) -> None:
        self._device = device
        self._buffers = buffers
        self._addresses: dict[str, int] = {}

    def call(self, locations: Mapping[str, Location]) -> Call:
        """Where the tensors lie."""
        return {
            name: location.arg(
                self._addresses[location.buffer], self._buffers[location.buffer].itemsize
            )
            for name, location in locations.items()
        }

    def download(self, name: str) -> NDArray[Any]:
        """A buffer as it is now, after all launches before."""
        before = self._buffers[name]
        data = self._device.download(self._addresses[name], before.nbytes)
        return data.view(before.dtype)


@contextmanager
def uploaded(device: Device, buffers: Mapping[str, NDArray[Any]]) -> Iterator[Uploaded]:
    """One-dimensional buffers on the device, freed at the end."""
    held = Uploaded(device, buffers)
    try:
        for name, buffer in buffers.items():
            held._addresses[name] = device.allocate(buffer.nbytes)
            device.upload(held._addresses[name], buffer)
        yield held
    finally:
        for address in held._addresses.values():
            device.free(address)


def contiguous_tensors(
    problem: AttentionProblem, inputs: Mapping[str, NDArray[Any]]
) -> tuple[dict[str, Location], dict[str, NDArray[Any]]]:
    """Locations and buffers of a call: inputs (in the layout) as given, outputs poisoned."""
    locations: dict[str, Location] = {}
    buffers: dict[str, NDArray[Any]] = {}
    for role in signature_of(problem).of(problem):
        if role.is_scores:
            locations[role.name], buffers[role.name] = _broadcast(role.name, inputs[role.name])
            continue
        locations[role.name] = in_layout(contiguous(role.name, role.shape(problem)), problem)
        if role.is_output:
            size = int(np.prod(role.shape(problem)))
            poison = poison_of(role, problem)
            buffers[role.name] = np.full(size, poison, bits_type(role, problem))
        else:
            buffers[role.name] = np.ascontiguousarray(inputs[role.name]).reshape(-1)
    return locations, buffers


def _broadcast(name: str, array: NDArray[Any]) -> tuple[ScoresLocation, NDArray[Any]]:
    """A tensor with an element a score, without what is broadcast: strides of 0 stay."""
    own = array[tuple(slice(None) if stride else slice(1) for stride in array.strides)]
    own = np.ascontiguousarray(own)
    strides = [
        stride // own.itemsize if was else 0
        for stride, was in zip(own.strides, array.strides, strict=True)
    ]
    *outer, key_stride = strides
    return ScoresLocation(name, 0, array.shape, tuple(outer), key_stride), own.reshape(-1)


def in_layout(location: Location, problem: AttentionProblem) -> Location:
    """A location whose dimensions are in the problem's layout, indexed (batch, row, head, d)."""
    is_scores = isinstance(location, ScoresLocation)
    if len(location.shape) != 4 or problem.layout == "bshd" or is_scores:
        return location
    batch, heads, rows, d_head = location.shape
    by_batch, by_head, by_row = location.strides
    return Location(
        location.buffer, location.offset, (batch, rows, heads, d_head), (by_batch, by_row, by_head)
    )
