"""The options of an attention call, checked: everything that is not an array."""

from __future__ import annotations

import math
from numbers import Real
from typing import NamedTuple

from flashsmith.base.errors import ArgumentError, ArgumentTypeError
from flashsmith.kernels.kernel import KernelConfig
from flashsmith.kernels.parse import parse_config

_CONFIGS = (KernelConfig, str)  # a tuple: torch.compile of torch 2.6 cannot trace a union
LAYOUTS = {
    "bshd": "(batch, sequence, heads, d_head)",
    "bhsd": "(batch, heads, sequence, d_head)",
}


class CallOptions(NamedTuple):
    """What a call asks for, beside its arrays; a tuple, because every call makes one."""

    causal: bool = False
    scale: float | None = None
    layout: str = "bshd"
    return_lse: bool = False
    config: KernelConfig | str | None = None  # a text is read when the kernel is prepared
    backend: str | None = None
    top_left: bool = False  # where the causal diagonal begins; False: it ends bottom-right


# What is an object here is told apart by these functions.
def checked_options(
    *,
    causal: object,
    scale: object,
    layout: str,
    return_lse: object,
    config: object,
    backend: str | None,
    top_left: bool = False,
) -> CallOptions:
    """The options of a call; raises where one cannot be used."""
    if layout not in LAYOUTS:
        raise ArgumentError(
            f"layout is {layout!r}; it is 'bshd' {LAYOUTS['bshd']} or 'bhsd' {LAYOUTS['bhsd']}."
        )
    if backend not in (None, "cuda", "emulator"):
        raise ArgumentError(f"backend is {backend!r}; it is None, 'cuda' or 'emulator'.")
    return CallOptions(
        checked_flag("causal", causal),
        checked_scale("scale", scale),
        layout,
        checked_flag("return_lse", return_lse),
        checked_config(config),
        backend,
        top_left,
    )


def checked_flag(name: str, value: object) -> bool:
    """`value` as a bool; numbers and texts are refused, they are mostly misplaced arguments."""
    if value is True or value is False:
        return value
    if type(value).__name__ in ("bool", "bool_") and hasattr(value, "item"):  # NumPy's own
        return bool(value)
    raise ArgumentTypeError(f"{name} is {value!r}; it is True or False.")


def checked_scale(name: str, value: object) -> float | None:
    """`value` as a finite number above 0, or None."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ArgumentTypeError(
            f"{name} is {value!r}; it is a number above 0, or None for 1/sqrt(d_head)."
        )
    number = float(value)
    if not (number > 0 and math.isfinite(number)):
        raise ArgumentError(
            f"{name} is {number:g}; it must be a finite number above 0 (negate or scale q instead)."
        )
    return number


def checked_config(config: object) -> KernelConfig | str | None:
    """A configuration, or a text that may name one."""
    if config is None or isinstance(config, _CONFIGS):
        return config
    raise ArgumentTypeError(
        f"config is of type {type(config).__name__}; it is a kernel configuration, its short form, "
        f"or None."
    )


def read_config(config: KernelConfig | str | None) -> KernelConfig | None:
    """The configuration that is meant; raises for a text that names none."""
    return parse_config(config) if isinstance(config, str) else config
