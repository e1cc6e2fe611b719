"""What peers are asked for: calls without arguments, on tensors of the caller's."""

from __future__ import annotations

from collections.abc import Callable

from flashsmith.base.loose_types import TorchTensor

Call = Callable[[], TorchTensor]
# Of a problem, q, k and v in (batch, row, head, d) order, and tables by their names.
MakeCall = Callable[..., Call]
# Of dO, q, k, v, O and LSE: gradients.
MakeGradients = Callable[..., Call]
