"""How a launch is emulated, and what is known after it."""

from __future__ import annotations

from dataclasses import dataclass

from flashsmith.emulator.checks.counters import Counters


@dataclass(frozen=True, slots=True)
class EmulatorOptions:
    """Checks are on unless taken off; a seed asks for a random schedule of single warps."""

    checks: bool = True
    counters: bool = False
    seed: int | None = None
    delayed_landing: bool = (
        False  # asynchronous copies land as late, or at as odd a time, as allowed
    )
    mma_in_order: bool = False  # sums of mma after mma, as the hardware does; else as is fastest
    processes: int | None = None  # None: one, or as many as pay for a large grid
    chunk_lanes: int = 4096  # lanes that are computed together


@dataclass(frozen=True, slots=True)
class LaunchReport:
    """What one launch did; counters only if they were asked for."""

    kernel: str
    blocks: int
    threads: int
    seconds: float
    warp_instructions: int  # dynamic, of all warps
    counters: Counters | None = None
