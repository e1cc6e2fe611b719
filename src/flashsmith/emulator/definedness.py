"""Registers that may be read before they are written, and which lanes have written them.

Liveness finds them at load: they live at the kernel's first instruction. Each gets a companion
register, true in the lanes that have written it, which forks and merges like any other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from flashsmith.emulator.segments import Segment
from flashsmith.emulator.unit import Unit

if TYPE_CHECKING:
    from flashsmith.emulator.chunk import Chunk


def add_companions(segments: list[Segment], registers: int) -> dict[int, int]:
    """Register → companion; the segments' sets of live registers then hold the companions too."""
    doubtful = segments[0].live_in
    companions: dict[int, int] = {}
    while doubtful:
        low = doubtful & -doubtful
        companions[low.bit_length() - 1] = registers + len(companions)
        doubtful ^= low
    for number, companion in companions.items():
        for segment in segments:
            _add_companion(segment, 1 << number, 1 << companion)
    return companions


def _add_companion(segment: Segment, register: int, companion: int) -> None:
    for field in ("uses", "defines", "live_in", "live_out"):
        if getattr(segment, field) & register:
            setattr(segment, field, getattr(segment, field) | companion)
    segment.effects = [
        (
            reads | (companion if reads & register else 0),
            writes | (companion if writes & register else 0),
        )
        for reads, writes in segment.effects
    ]


def defined_by(guard: Any, before: Any) -> Any:  # Any: None, a truth value, or lanes of them
    """The companion after a write in the lanes where `guard` holds."""
    return guard if before is None else guard | before


def require_defined(c: Chunk, u: Unit, m: Any, companion: Any, name: str, index: int) -> None:
    """Faults when an active lane reads a register that it has not written."""
    if not c.options.checks or m is False:
        return
    written = np.zeros(32 * u.pairs, np.bool_) if companion is None else u.array(companion)
    missing = ~written if m is None else ~written & m
    if missing.any():
        lane = int(np.flatnonzero(missing)[0])
        c.fault("uninitialised", f"reads register {name}, never written", index, u, lane=lane)
