"""The functions of flash-attn that have no counterpart yet: each says so when it is called."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from flashsmith.api.refusals import said_when_it_runs
from flashsmith.base.errors import Unsupported

# What each would need, and what to do instead.
_MISSING = {
    "flash_attn_qkvpacked_func": (
        "tensors that hold q, k and v in one",
        "pass qkv[:, :, 0], qkv[:, :, 1] and qkv[:, :, 2] to flash_attn_func: views are read in "
        "place",
    ),
    "flash_attn_kvpacked_func": (
        "tensors that hold k and v in one",
        "pass q, kv[:, :, 0] and kv[:, :, 1] to flash_attn_func: views are read in place",
    ),
    "flash_attn_varlen_qkvpacked_func": (
        "tensors that hold q, k and v in one",
        "pass qkv[:, 0], qkv[:, 1] and qkv[:, 2] to flash_attn_varlen_func: views are read in "
        "place",
    ),
    "flash_attn_varlen_kvpacked_func": (
        "tensors that hold k and v in one",
        "pass q, kv[:, 0] and kv[:, 1] to flash_attn_varlen_func: views are read in place",
    ),
}


def _refusal(name: str, what: str, advice: str) -> Callable[..., NoReturn]:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise Unsupported(f"{name}: flashsmith does not support {what} yet; {advice}.")

    refuse.__name__ = refuse.__qualname__ = name
    refuse.__doc__ = f"flash-attn's `{name}`: refused, flashsmith does not support {what} yet."
    return said_when_it_runs(refuse)


REFUSED = {name: _refusal(name, *why) for name, why in _MISSING.items()}
