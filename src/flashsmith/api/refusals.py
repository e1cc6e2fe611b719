"""What a call refuses inside torch.compile is said when it runs, as without it."""

from __future__ import annotations

from flashsmith.api.arrays import origin
from flashsmith.api.arrays.library import Array, ArrayOrTuple
from flashsmith.base.errors import FlashsmithError


def refused(error: FlashsmithError, q: Array, results: int = 1) -> ArrayOrTuple:
    """Raises the error; where torch.compile traces the call, an operator that raises it is traced.

    An error while tracing would reach the caller as "Observed exception", on a page about tracing.
    `results` says how many a call returns; nobody sees them.
    """
    if origin(q) != "torch":
        raise error
    from flashsmith.torch_op.operator import is_compiling, refuse

    if not is_compiling():
        raise error
    made = refuse(q, type(error).__name__, str(error.args[0]))
    return made if results == 1 else (made,) * results
