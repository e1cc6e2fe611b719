"""What a call refuses inside torch.compile is said when it runs, as without it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from flashsmith.api.arrays import origin
from flashsmith.base.errors import FlashsmithError

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")
_FIRST = ("q", "query")


def said_when_it_runs(
    function: Callable[_Arguments, _Result],
) -> Callable[_Arguments, _Result]:
    """The function; where torch.compile traces it, an error becomes an operator that raises it.

    An error while tracing would reach the caller as "Observed exception", on a page about tracing.
    """

    @functools.wraps(function)
    def call(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        try:
            return function(*args, **kwargs)
        except FlashsmithError as error:
            first = args[0] if args else next((kwargs[n] for n in _FIRST if n in kwargs), None)
            if origin(first) != "torch":
                raise
            from flashsmith.torch_op.operator import is_compiling, refuse

            if not is_compiling():
                raise
            made = refuse(first, type(error).__name__, str(error.args[0]))
            if kwargs.get("return_attn_probs"):
                return (made, made, None)  # type: ignore[return-value]  # nobody sees it
            more = sum(1 for name in ("return_lse", "explain") if kwargs.get(name))
            return (made,) * (more + 1) if more else made  # type: ignore[return-value]

    return call
