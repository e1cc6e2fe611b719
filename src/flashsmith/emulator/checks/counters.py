"""What a kernel did to the machine: instructions, bank conflicts, sectors, bytes, waits."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class AccessCount:
    """Shared-memory accesses of one instruction of the program."""

    requests: int = 0  # warps that executed it
    phases: int = 0  # wavefronts an access without conflicts takes
    extra: int = 0  # wavefronts that bank conflicts add

    def add(self, other: AccessCount) -> None:
        """Adds the counts of another part of the launch."""
        self.requests += other.requests
        self.phases += other.phases
        self.extra += other.extra


@dataclass(slots=True)
class Counters:
    """Dynamic counts of one launch, over all warps of all ctas."""

    instructions: Counter[str] = field(default_factory=Counter)  # by class, a warp at a time
    shared: dict[int, AccessCount] = field(default_factory=dict)  # by PTX line
    sectors: Counter[int] = field(default_factory=Counter)  # 32-byte sectors by PTX line
    requests: Counter[int] = field(default_factory=Counter)  # global requests by PTX line
    bytes: Counter[str] = field(default_factory=Counter)  # "global load", "shared store"…
    barrier_waits: int = 0  # warps that arrived at a barrier and had to wait for it
    barrier_arrivals: int = 0

    def add(self, other: Counters) -> None:
        """Adds the counts of another part of the launch."""
        self.instructions.update(other.instructions)
        self.sectors.update(other.sectors)
        self.requests.update(other.requests)
        self.bytes.update(other.bytes)
        self.barrier_waits += other.barrier_waits
        self.barrier_arrivals += other.barrier_arrivals
        for line, count in other.shared.items():
            self.shared.setdefault(line, AccessCount()).add(count)

    @property
    def bank_conflicts(self) -> int:
        """Extra wavefronts of shared memory, of all instructions."""
        return sum(count.extra for count in self.shared.values())

    @property
    def shared_phases(self) -> int:
        """Wavefronts of shared memory without the conflicts."""
        return sum(count.phases for count in self.shared.values())

    @property
    def sectors_a_request(self) -> float:
        """32-byte sectors that one request to global memory touches, on average."""
        requests = sum(self.requests.values())
        return sum(self.sectors.values()) / requests if requests else 0.0
