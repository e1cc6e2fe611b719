"""The types of what generated code hands about."""

from typing import Any

# Any: a register or a mask: lanes as an array of its type, a scalar for all of them, or None.
Value = Any
NumpyArgument = Any  # Any: an index, a shape, a dtype: whatever numpy takes in this position
ScalarClass = Any  # Any: a scalar class of numpy, such as np.uint32
