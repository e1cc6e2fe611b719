"""What compiling one kernel gives: PTX, cubin, and the facts the compiler states about them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from flashsmith.compile.machine.cubin import code_hash


@dataclass(frozen=True, slots=True)
class Resources:
    """What ptxas said of one kernel on one architecture."""

    registers: int
    spill_store_bytes: int
    spill_load_bytes: int
    stack_bytes: int
    static_smem_bytes: int
    barriers: int
    warnings: tuple[str, ...] = ()

    @property
    def spill_bytes(self) -> int:
        """Bytes a thread spills: stores and loads of local memory in the machine code, added."""
        return self.spill_store_bytes + self.spill_load_bytes


@dataclass(frozen=True, slots=True)
class CompiledKernel:
    """One kernel for one architecture, as it lies in the kernel cache."""

    name: str  # the extern "C" entry
    arch: str  # "sm_90a"
    ptx: str
    cubin: bytes
    resources: Resources
    compiler: str  # "nvrtc 13.4.92"
    source_hash: str  # of the unit and every header it includes
    key: str  # of the cache entry
    compile_seconds: float  # of the compile that made it, not of this look-up
    folder: Path | None = None

    @property
    def code(self) -> str:
        """The hash of the machine code: what a measurement of this kernel is keyed by."""
        return code_hash(self.cubin)


@dataclass(frozen=True, slots=True)
class Built:
    """What an ahead-of-time build made."""

    path: Path
    n_configs: int
    n_kernels: int  # of all configurations, traits and architectures
    n_bytes: int
    seconds: float
    compiler: str
    left_out: tuple[str, ...] = ()  # kernels that were refused, with the reason
