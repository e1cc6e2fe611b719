"""What is computed: shapes, mask and scale of one attention problem, its cost and its truth."""

from typing import TYPE_CHECKING, Any

from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.cost import Cost, forward_cost, visible_area, visible_pairs

if TYPE_CHECKING:
    from flashsmith.problem.reference import (
        Reference,
        reference_attention,
        shape_in_layout,
        visible,
    )

__all__ = [
    "AttentionProblem",
    "Cost",
    "Reference",
    "forward_cost",
    "reference_attention",
    "shape_in_layout",
    "visible",
    "visible_area",
    "visible_pairs",
]


def __getattr__(name: str) -> Any:  # Any: a function or a class of the reference
    """The reference needs numpy, which `import flashsmith` does without."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from flashsmith.problem import reference

    return getattr(reference, name)
