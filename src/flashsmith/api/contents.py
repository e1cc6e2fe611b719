"""What arrays and tables hold, looked into before a call where FLASHSMITH_CHECK asks for it."""

from __future__ import annotations

from flashsmith.api.arrays.library import Array
from flashsmith.api.options import CallOptions
from flashsmith.api.scores import require_small_scores
from flashsmith.api.tables import (
    NO_TABLES,
    ArrayTables,
    require_boundaries,
    require_entries_inside,
)


def require_contents(
    q: Array, k: Array, options: CallOptions, tables: ArrayTables = NO_TABLES
) -> None:
    """Raises, with the place, for numbers that kernels would clamp or be wrong on.

    Arguments that have no numbers to look into are left to the checks that refuse them by name.
    """
    for array in (q, k):
        if len(getattr(array, "shape", ())) not in (3, 4) or getattr(array, "is_sparse", False):
            return
    require_small_scores(q, k, options, tables)
    require_boundaries(tables, q, k, options)
    require_entries_inside(tables, q, k, str(options.fact("layout")))
