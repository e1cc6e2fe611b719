"""What is computed: the facts of one attention problem, its mask, its cost and its truth."""

from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.cost import Cost, cost_of
from flashsmith.problem.mask import Mask

__all__ = ["AttentionProblem", "Cost", "Mask", "cost_of"]
