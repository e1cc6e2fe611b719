"""The two element types of the kernels, and how their bits become numbers without any framework."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# numpy is imported where bits are made: configurations and the command line start without it.


class DType(IntEnum):
    """Element type of Q, K, V and O, with the numbers of torch's ScalarType."""

    FP16 = 5
    BF16 = 15

    @property
    def bytes(self) -> int:
        """Size of one element."""
        return 2

    @classmethod
    def of(cls, array_dtype: object) -> DType | None:
        """The element type an array library means by `array_dtype`, or None if it is neither."""
        name = str(getattr(array_dtype, "name", array_dtype)).removeprefix("torch.")
        return {"float16": cls.FP16, "bfloat16": cls.BF16}.get(name)


def to_bits(values: NDArray[Any], dtype: DType) -> NDArray[np.uint16]:
    """Rounds numbers to `dtype` (to nearest even) and returns their 16-bit patterns."""
    import numpy as np

    if dtype is DType.FP16:
        with np.errstate(over="ignore"):
            return np.ascontiguousarray(values, dtype=np.float16).view(np.uint16)
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    nan = (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    return np.where(nan, np.uint32(0x7FFF), rounded).astype(np.uint16)


def from_bits(bits: NDArray[np.uint16], dtype: DType) -> NDArray[np.float32]:
    """The numbers that 16-bit patterns of `dtype` stand for."""
    import numpy as np

    if dtype is DType.FP16:
        return np.ascontiguousarray(bits).view(np.float16).astype(np.float32)
    return (np.ascontiguousarray(bits).astype(np.uint32) << np.uint32(16)).view(np.float32)
