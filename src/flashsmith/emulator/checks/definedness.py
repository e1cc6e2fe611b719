"""Registers that may be read before they are written, and which lanes have written them.

Liveness finds them at load: they live at the kernel's first instruction. Each gets a companion
register, true in the lanes that have written it, which forks and merges like any other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from flashsmith.emulator.machine.segments import Segment, numbers
from flashsmith.emulator.machine.unit import Unit
from flashsmith.emulator.machine.values import Value

if TYPE_CHECKING:
    from flashsmith.emulator.machine.chunk import Chunk


def add_companions(segments: list[Segment], registers: int) -> dict[int, int]:
    """Register → companion; the segments' sets of live registers then hold the companions too."""
    doubtful = segments[0].live_in
    companions = {number: registers + n for n, number in enumerate(numbers(doubtful))}
    if companions:
        for segment in segments:
            _add_companions(segment, doubtful, companions)
    return companions


def _add_companions(segment: Segment, doubtful: int, companions: dict[int, int]) -> None:
    def spread(registers: int) -> int:
        some = registers & doubtful
        for number in numbers(some) if some else ():
            registers |= 1 << companions[number]
        return registers

    segment.uses, segment.defines = spread(segment.uses), spread(segment.defines)
    segment.live_in, segment.live_out = spread(segment.live_in), spread(segment.live_out)
    segment.effects = [(spread(reads), spread(writes)) for reads, writes in segment.effects]


def defined_by(guard: Value, before: Value) -> Value:
    """The companion after a write in the lanes where `guard` holds."""
    return guard if before is None else guard | before


def require_defined(c: Chunk, u: Unit, m: Value, companion: Value, name: str, index: int) -> None:
    """Faults when an active lane reads a register that it has not written."""
    if not c.options.checks or m is False:
        return
    written = np.zeros(32 * u.pairs, np.bool_) if companion is None else u.array(companion)
    missing = ~written if m is None else ~written & m
    if missing.any():
        lane = int(np.flatnonzero(missing)[0])
        c.fault("uninitialised", f"reads register {name}, never written", index, u, lane=lane)
