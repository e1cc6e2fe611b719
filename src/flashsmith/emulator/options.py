"""How a launch is emulated, and what is known after it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flashsmith.emulator.checks.counters import Counters
from flashsmith.emulator.memory import GlobalMemory
from flashsmith.emulator.ordering.traits import KernelTraits
from flashsmith.emulator.ptx.module import Kernel


@dataclass(frozen=True, slots=True)
class EmulatorOptions:
    """Checks are on unless taken off; a seed asks for a random schedule of single warps."""

    checks: bool = True
    counters: bool = False
    seed: int | None = None
    delayed_landing: bool = (
        False  # asynchronous copies land as late, or at as odd a time, as allowed
    )
    ordered_sums: bool = False  # sums of the same bytes in bulk must be ordered, as copies must be
    mma_in_order: bool = False  # sums of mma after mma, as the hardware does; else as is fastest
    processes: int | None = None  # None: one, or as many as pay for a large grid
    chunk_lanes: int = 4096  # lanes that are computed together


@dataclass(frozen=True, slots=True)
class LaunchSetup:
    """What all ctas of one launch share."""

    kernel: Kernel
    grid: tuple[int, int, int]
    threads: int
    smem_bytes: int  # static and dynamic, without the reserved first KB
    dynamic_bytes: int
    params: bytes
    memory: GlobalMemory
    symbols: dict[str, np.uint64]  # addresses of module variables
    local_bytes: int
    options: EmulatorOptions
    cluster: int
    sm_count: int
    traits: KernelTraits

    @property
    def ctas(self) -> int:
        """All ctas of the grid."""
        return self.grid[0] * self.grid[1] * self.grid[2]


@dataclass(frozen=True, slots=True)
class LaunchReport:
    """What one launch did; counters only if they were asked for."""

    kernel: str
    blocks: int
    threads: int
    seconds: float
    warp_instructions: int  # dynamic, of all warps
    counters: Counters | None = None
