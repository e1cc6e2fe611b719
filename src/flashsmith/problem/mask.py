"""Which keys each query row sees: the only mask arithmetic in Python."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Mask(NamedTuple):
    """Row i stands at key i + `alignment` and sees `left` keys before it and `right` behind it.

    None is unbounded. Rows are those of a matrix of `q_len` x `k_len`.
    """

    q_len: int
    k_len: int
    left: int | None = None
    right: int | None = None
    alignment: int = 0

    def span(self, first_row: int, end_row: int) -> tuple[int, int]:
        """The keys that any of the rows [first_row, end_row) sees: the first, and how many."""
        end_row = min(end_row, self.q_len)
        if end_row <= first_row:
            return 0, 0
        first, end = self._first(first_row), self._end(end_row - 1)
        return (first, end - first) if end > first else (0, 0)

    @property
    def hides(self) -> bool:
        """Whether some row does not see some key."""
        return self.hides_left or self.hides_right

    @property
    def hides_left(self) -> bool:
        """Whether some row does not see the first key, because of its left edge."""
        return self._first(self.q_len - 1) > 0

    @property
    def hides_right(self) -> bool:
        """Whether some row does not see the last key, because of its right edge."""
        return self._end(0) < self.k_len

    def hides_at_corners_only(self, rows: int, keys: int) -> bool:
        """Whether in tiles of `rows` x `keys` no key is hidden but along one diagonal of tiles.

        There is a right edge and no left one, it passes through corners of row tiles, and hides
        what a last tile has behind the last key.
        """
        if not self.hides_right or self.hides_left:
            return False
        ends = self.k_len % keys == 0 or self.q_len + self.diagonal <= self.k_len
        return ends and self.diagonal % rows == 0

    @property
    def reach(self) -> int:
        """How many keys a row's edges lie apart; an edge that is unbounded lies at all keys."""
        left, right = (self.k_len if side is None else side for side in (self.left, self.right))
        return left + right

    @property
    def short_rows(self) -> int:
        """The first rows, whose left edge lies before the first key: they see fewer than others."""
        if self.left is None or self.right is None:
            return 0
        return max(0, min(self.left - self.alignment, self.q_len))

    def is_like(self, other: Mask) -> bool:
        """Whether both are bounded on the same sides and aligned alike, whatever the lengths."""
        mine, theirs = (
            (
                mask.left is None,
                mask.right is None,
                mask.right is not None and mask.right + mask.alignment == mask.k_len - mask.q_len,
            )
            for mask in (self, other)
        )
        return mine == theirs

    @property
    def diagonal(self) -> int:
        """How far right of its own index a row sees, no further out than makes a difference.

        Sums with it stay in 32 bits. Unbounded, it lies right of the last key: a kernel that masks
        then computes the problem too.
        """
        offset = self.k_len if self.right is None else self.alignment + self.right
        return max(-self.q_len, min(offset, self.k_len))

    @property
    def left_diagonal(self) -> int:
        """Where a row's first key lies from its own index, as far out as makes a difference."""
        offset = -self.q_len if self.left is None else self.alignment - self.left
        return max(-self.q_len, min(offset, self.k_len))

    @property
    def offsets(self) -> tuple[int, int]:
        """Right and left edge from where a row stands, no further out than makes a difference.

        For sequences inside this matrix that have alignments of their own.
        """
        most = self.q_len + self.k_len
        right = most if self.right is None else self.alignment + self.right
        left = -most if self.left is None else self.alignment - self.left
        return max(-most, min(right, most)), max(-most, min(left, most))

    @property
    def area(self) -> float:
        """What the mask leaves of q_len x k_len, edges as lines: an element on an edge is half."""
        right = self.k_len if self.right is None else self.alignment + self.right
        left = self.q_len + self.k_len if self.left is None else self.left - self.alignment
        return _under(right, self.q_len, self.k_len) - _under(-left, self.q_len, self.k_len)

    @property
    def pairs(self) -> int:
        """How many (row, key) pairs the mask leaves."""
        return sum(max(self._end(i) - self._first(i), 0) for i in range(self.q_len))

    def visible_counts(self) -> NDArray[np.int64]:
        """How many keys each row sees, of shape (q_len,)."""
        import numpy as np

        counts = (max(self._end(i) - self._first(i), 0) for i in range(self.q_len))
        return np.fromiter(counts, np.int64, self.q_len)

    def visible(self) -> NDArray[np.bool_]:
        """Which keys each row sees, of shape (q_len, k_len)."""
        import numpy as np

        rows = np.arange(self.q_len)[:, None] + self.alignment
        keys = np.arange(self.k_len)[None, :]
        seen = np.ones((self.q_len, self.k_len), np.bool_)
        if self.right is not None:
            seen &= keys <= rows + self.right
        if self.left is not None:
            seen &= keys >= rows - self.left
        return seen

    def distances(self) -> NDArray[np.int64]:
        """How far each key lies from where each row stands, of shape (q_len, k_len)."""
        import numpy as np

        rows = np.arange(self.q_len)[:, None] + self.alignment
        return np.asarray(np.abs(rows - np.arange(self.k_len)[None, :]))

    def _first(self, row: int) -> int:
        if self.left is None:
            return 0
        return min(max(row + self.alignment - self.left, 0), self.k_len)

    def _end(self, row: int) -> int:
        if self.right is None:
            return self.k_len
        return min(max(row + self.alignment + self.right + 1, 0), self.k_len)


def _under(offset: int, rows: int, keys: int) -> float:
    """The area of rows x keys left of the line through (row x, key x + offset)."""
    # Row x sees clamp(x + offset, 0, keys): 0 up to `first`, a ramp, all keys from `last` on.
    first = min(max(-offset, 0), rows)
    last = min(max(keys - offset, first), rows)
    ramp = (last - first) * ((first + offset) + (last + offset)) / 2
    return max(ramp, 0.0) + float((rows - last) * keys)
