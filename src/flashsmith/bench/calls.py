"""What peers are asked for: calls without arguments, on tensors of the caller's."""

from __future__ import annotations

from collections.abc import Callable

from flashsmith.base.loose_types import TorchTensor
from flashsmith.problem.attention import AttentionProblem

Call = Callable[[], TorchTensor]
# Of q, k and v, in (batch, row, head, d) order.
MakeCall = Callable[[AttentionProblem, TorchTensor, TorchTensor, TorchTensor], Call]
# Of dO, q, k, v, O and LSE: gradients.
MakeGradients = Callable[..., Call]
