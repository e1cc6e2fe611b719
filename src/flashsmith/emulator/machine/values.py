"""The type of what generated code hands about."""

from typing import Any

# Any: a register or a mask: lanes as an array of its type, a scalar for all of them, or None.
Value = Any
