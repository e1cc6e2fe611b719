"""What the API needs of an array library, whose arrays lie in the host's memory or on a GPU."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from flashsmith.api.array_view import ArrayView

Array = Any  # Any: an array of the library that a caller uses; none is imported here
ArrayOrTuple = Array  # an array, or a tuple that begins with one


class ArrayLibrary(Protocol):
    """One library's arrays."""

    def require_usable(self, name: str, array: Array) -> None:
        """Raises for what looks like an array of this library and cannot be used as one."""

    def view(self, name: str, array: Array) -> ArrayView:
        """Where the array lies; on a GPU, after the work that makes it."""


class HostArrays(ArrayLibrary, Protocol):
    """A library whose arrays can lie in the host's memory."""

    def bits(self, array: Array) -> NDArray[np.uint16]:
        """The elements as 16-bit patterns, without a copy."""

    def from_bits(self, bits: NDArray[np.uint16], like: Array) -> Array:
        """An array of the library with the element type of `like`."""

    def float32(self, array: Array) -> NDArray[np.float32]:
        """The numbers of a float32 array, such as a log-sum-exp."""

    def from_float32(self, values: NDArray[np.float32]) -> Array:
        """The log-sum-exp as an array of the library."""


class GpuArrays(ArrayLibrary, Protocol):
    """A library whose arrays can lie on a GPU."""

    @property
    def orders_by_stream(self) -> bool:
        """Whether the library orders later work behind ours; if not, results must be complete."""

    def stream(self, array: Array) -> int:
        """The handle of the stream that work on the array belongs on."""

    def compacted(self, array: Array) -> Array:
        """A contiguous copy."""

    def new(self, like: Array, shape: tuple[int, ...], dtype: str) -> Array:
        """An array on the GPU of `like`, to be written by a kernel."""
