"""NumPy arrays: float16, and bfloat16 as ml_dtypes defines it."""

from __future__ import annotations

import sys

import numpy as np
from numpy.typing import NDArray

from flashsmith.api.array_view import ArrayView
from flashsmith.api.arrays.library import Array
from flashsmith.base.errors import ArgumentError, ArgumentTypeError


class NumpyArrays:
    """NumPy's side of `HostArrays`: all of it is in the host's memory."""

    def require_usable(self, name: str, array: Array) -> None:
        """Refuses scalars, masked arrays (their mask would be ignored) and swapped bytes."""
        if not isinstance(array, np.ndarray) or _is_masked(array):
            raise ArgumentTypeError(
                f"{name} is of type {type(array).__name__}; pass a plain numpy.ndarray."
            )
        if not array.dtype.isnative:
            raise ArgumentTypeError(
                f"{name} is {array.dtype.str}, of the other byte order; convert it with "
                f"astype(dtype.newbyteorder('='))."
            )
        if name == "out" and not array.flags.writeable:
            raise ArgumentError("out is read-only; pass an array that can be written.")

    def view(self, name: str, array: Array) -> ArrayView:
        """Where the array lies."""
        return ArrayView(
            name=name,
            shape=array.shape,
            strides=tuple(stride // array.itemsize for stride in array.strides),
            dtype=array.dtype.name,
            address=array.ctypes.data,
            device="cpu",
        )

    def bits(self, array: Array) -> NDArray[np.uint16]:
        """The elements as 16-bit patterns."""
        view: NDArray[np.uint16] = np.asarray(array).view(np.uint16)
        return view

    def from_bits(self, bits: NDArray[np.uint16], like: Array) -> Array:
        """An array with the element type of `like`."""
        return bits.view(like.dtype)

    def float32(self, array: Array) -> NDArray[np.float32]:
        """The numbers of a float32 array."""
        return np.asarray(array, np.float32)

    def from_float32(self, values: NDArray[np.float32]) -> Array:
        """The values as they are."""
        return values


def _is_masked(array: Array) -> bool:
    """Whether it is a masked array; their module takes 20 ms to import, so it is not asked."""
    masked = sys.modules.get("numpy.ma")
    return masked is not None and isinstance(array, masked.MaskedArray)


LIBRARY = NumpyArrays()
