"""Where an array lies and what shape it has, whichever library it comes from."""

from __future__ import annotations

from dataclasses import dataclass, replace

ALIGNED_ELEMENTS = 8  # the kernels move 16 bytes at a time
ALIGNED_BYTES = 16
LINE_BYTES = 128  # of L2: kernels drop whole lines of scratch, which are nobody else's
_ELEMENT_BYTES = {"bool": 1, "bool8": 1, "uint8": 1, "int32": 4, "float32": 4, "int64": 8}


@dataclass(frozen=True, slots=True)
class ArrayView:
    """One argument of a call; strides count elements."""

    name: str  # the argument's name, for messages
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str  # "float16"
    address: int
    device: str  # "cpu" or "cuda:0"

    @property
    def is_empty(self) -> bool:
        """Whether there is no element."""
        return 0 in self.shape

    def in_bshd(self, layout: str) -> ArrayView:
        """The same memory with its dimensions in the order batch, sequence, heads, d_head."""
        if layout == "bshd":
            return self
        return replace(self, shape=_swapped(self.shape), strides=_swapped(self.strides))

    def obstacle(self) -> str:
        """Why a kernel cannot read this memory in place, or an empty text."""
        if self.is_empty:
            return ""
        if self.strides[-1] != 1 and self.shape[-1] != 1:
            return "its last dimension is not contiguous"
        outer = [s for n, s in zip(self.shape[:-1], self.strides[:-1], strict=True) if n > 1]
        if any(stride < 0 for stride in outer):
            return "it has a negative stride"
        if any(stride % ALIGNED_ELEMENTS for stride in outer):
            return "its rows do not begin at multiples of 16 bytes"
        if self.address % ALIGNED_BYTES:
            return "it does not begin at a multiple of 16 bytes"
        return ""

    def readable(self) -> ArrayView:
        """The view itself, or that of the contiguous copy which its `obstacle` makes necessary."""
        return replace(self, address=0, strides=compact(self.shape)) if self.obstacle() else self

    @property
    def element_bytes(self) -> int:
        """Bytes of an element; those of rows have 2."""
        return _ELEMENT_BYTES.get(self.dtype, 2)

    def overlaps(self, other: ArrayView) -> bool:
        """Whether the spans of two views share memory (their gaps count as theirs)."""
        if self.is_empty or other.is_empty or self.device != other.device:
            return False
        begin, end = self._reach()
        other_begin, other_end = other._reach()
        return begin < other_end and other_begin < end

    def overlaps_itself(self) -> bool:
        """Whether two elements may lie in the same place; of odd strides, also where none do."""
        span = 1
        for stride, extent in sorted(zip(map(abs, self.strides), self.shape, strict=True)):
            if extent > 1 and stride < span:
                return True
            span += stride * (extent - 1)
        return False

    def _reach(self) -> tuple[int, int]:
        """The address of the first byte, and of the one behind the last."""
        steps = [(n - 1) * s for n, s in zip(self.shape, self.strides, strict=True)]
        before, behind = (sum(s for s in steps if s < 0), 1 + sum(s for s in steps if s > 0))
        return (
            self.address + before * self.element_bytes,
            self.address + behind * self.element_bytes,
        )

    @property
    def span(self) -> int:
        """Elements from the first to one past the last, gaps included; for strides from 0 up."""
        if self.is_empty:
            return 0
        return 1 + sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True))


def compact(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of a contiguous array."""
    strides = [1]
    for extent in reversed(shape[1:]):
        strides.insert(0, strides[0] * extent)
    return tuple(strides[: len(shape)])


def _swapped(four: tuple[int, ...]) -> tuple[int, ...]:
    return (four[0], four[2], four[1], four[3])
