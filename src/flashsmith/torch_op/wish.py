"""The operators' arguments beside the tensors, in the order of their schema."""

from __future__ import annotations

from typing import NamedTuple

from flashsmith.api.options import CallOptions, checked_scale
from flashsmith.base.errors import ArgumentError


class Wish(NamedTuple):
    """Torch leaves trailing arguments with default values away, so the defaults stand here too."""

    scale: float | None = None
    causal: bool = False
    top_left: bool = False
    heads_first: bool = False
    config: str = ""
    backend: str = ""

    def options(self, return_lse: bool) -> CallOptions:
        """The same as checked options of a call."""
        if self.backend not in ("", "cuda", "emulator"):
            raise ArgumentError(f"backend is {self.backend!r}; it is '', 'cuda' or 'emulator'.")
        return CallOptions(
            causal=self.causal,
            scale=checked_scale("scale", self.scale),
            layout="bhsd" if self.heads_first else "bshd",
            return_lse=return_lse,
            config=self.config or None,
            backend=self.backend or None,
            top_left=self.top_left,
        )
