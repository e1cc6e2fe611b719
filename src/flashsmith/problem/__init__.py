"""What is computed: shapes, mask and scale of one attention problem, its cost and its truth."""

from flashsmith.problem.attention_problem import AttentionProblem
from flashsmith.problem.cost import Cost, forward_cost, visible_area, visible_pairs
from flashsmith.problem.reference import Reference, reference_attention, shape_in_layout, visible

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
