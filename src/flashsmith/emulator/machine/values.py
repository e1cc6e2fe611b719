"""The types of what generated code hands about, and columns of ints without repeats."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

# Any: a register or a mask: lanes as an array of its type, a scalar for all of them, or None.
Value = Any
NumpyArgument = Any  # Any: an index, a shape, a dtype: whatever numpy takes in this position
ScalarClass = Any  # Any: a scalar class of numpy, such as np.uint32


def distinct(*rows: ArrayLike) -> NDArray[np.int64]:
    """The columns of these rows, each once, in ascending order.

    As `np.unique(rows, axis=1)`, which compares columns as structures: numpy calls Python for
    that, and turns an interrupt that comes just then into a TypeError.
    """
    columns = np.stack(rows).astype(np.int64, copy=False)
    columns = columns[:, np.lexsort(columns[::-1])]
    first = np.ones(columns.shape[1], np.bool_)
    (columns[:, 1:] != columns[:, :-1]).any(axis=0, out=first[1:])
    return columns[:, first]
