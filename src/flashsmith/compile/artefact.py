"""What compiling one kernel gives: PTX, cubin, and the facts the compiler states about them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from flashsmith.base.errors import DamagedFile
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


def resources_from(data: object) -> Resources:
    """What a file says of a kernel's resources; raises unless every field has its type."""
    names = {field.name for field in fields(Resources)}
    if not isinstance(data, dict) or set(data) != names:
        raise DamagedFile(f"resources are {str(data)[:80]!r}; their fields are {sorted(names)}")
    for name in names - {"warnings"}:
        value = data[name]
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**31:
            raise DamagedFile(f"{name} is {str(value)[:40]!r}; it must be a count")
    warnings = data["warnings"]
    if not isinstance(warnings, list) or not all(isinstance(text, str) for text in warnings):
        raise DamagedFile(f"warnings are {str(warnings)[:40]!r}; they must be a list of texts")
    return Resources(**{**data, "warnings": tuple(warnings)})


def text_from(data: Mapping[str, object], name: str) -> str:
    """A field of a file that is a text; raises where it is anything else."""
    value = data.get(name)
    if not isinstance(value, str):
        raise DamagedFile(f"{name} is {str(value)[:40]!r}; it must be a text")
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class PtxKernel:
    """One kernel as PTX, as it lies in the kernel cache: all that an emulator asks for."""

    name: str  # the extern "C" entry
    arch: str  # "sm_90a"
    ptx: str
    compiler: str  # "nvrtc 13.4.92"
    source_hash: str  # of the unit and every header it includes
    key: str  # of the cache entry
    compile_seconds: float  # of the compile that made it, not of this look-up
    folder: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledKernel(PtxKernel):
    """A kernel with its machine code."""

    cubin: bytes
    resources: Resources

    @property
    def code(self) -> str:
        """The hash of the machine code: what a measurement of this kernel is keyed by."""
        return code_hash(self.cubin)


def ptx_of(kernel: CompiledKernel | None) -> PtxKernel | None:
    """A kernel without its machine code: what runs it cannot depend on whether that is kept."""
    if kernel is None:
        return None
    return PtxKernel(**{field.name: getattr(kernel, field.name) for field in fields(PtxKernel)})


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
