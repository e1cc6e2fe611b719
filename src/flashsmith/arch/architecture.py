"""The limits of each GPU architecture a kernel can be compiled for.

Source: CUDA C++ Programming Guide, "Compute Capabilities" (technical specifications per compute
capability); allocation units from `cuda_occupancy.h` of the CUDA toolkit.
"""

from __future__ import annotations

from dataclasses import dataclass

from flashsmith.base.errors import ArgumentTypeError, Unsupported

KIB = 1024


@dataclass(frozen=True, slots=True)
class Arch:
    """What one streaming multiprocessor has, and what it gives to one block and one thread."""

    name: str  # as compilers take it: `sm_90a`
    sm_version: tuple[int, int]
    max_smem_per_block: int  # bytes, after opting in
    smem_per_sm: int  # bytes, reserved ones included
    max_warps_per_sm: int
    max_blocks_per_sm: int
    max_barriers_per_sm: int  # named barriers of all resident blocks together
    reserved_smem_per_block: int = 1 * KIB
    registers_per_sm: int = 64 * KIB
    registers_per_block: int = 64 * KIB
    max_registers_per_thread: int = 255
    max_threads_per_block: int = 1024
    warp_size: int = 32
    sub_partitions: int = 4  # warp schedulers, each with a fourth of the registers
    register_allocation_unit: int = 256  # registers of a warp are rounded up to this
    smem_allocation_unit: int = 128  # bytes

    @property
    def compute_capability(self) -> str:
        """`9.0`, as NVIDIA's documents write it."""
        return f"{self.sm_version[0]}.{self.sm_version[1]}"


# Name, compute capability, shared bytes a block and an SM; warps, blocks and barriers an SM.
# Before Hopper every block has its 16 barriers; from Hopper on they are shared out.
ARCHES: tuple[Arch, ...] = (
    Arch("sm_80", (8, 0), 163 * KIB, 164 * KIB, 64, 32, 16 * 32),
    Arch("sm_86", (8, 6), 99 * KIB, 100 * KIB, 48, 16, 16 * 16),
    Arch("sm_89", (8, 9), 99 * KIB, 100 * KIB, 48, 24, 16 * 24),
    Arch("sm_90a", (9, 0), 227 * KIB, 228 * KIB, 64, 32, 64),
    Arch("sm_100a", (10, 0), 227 * KIB, 228 * KIB, 64, 32, 64),
    Arch("sm_120", (12, 0), 99 * KIB, 100 * KIB, 48, 24, 24),
)
_BY_NAME = {arch.name: arch for arch in ARCHES}


def get(name: str) -> Arch:
    """The architecture called `name`; `sm_90` and `90a` mean the one of that version."""
    if not isinstance(name, str):
        raise ArgumentTypeError(f"arch is {name!r}; it must be a text such as 'sm_90a'.")
    wanted = name if name.startswith("sm_") else f"sm_{name}"
    for candidate in (wanted, f"{wanted}a", wanted.removesuffix("a")):
        if candidate in _BY_NAME:
            return _BY_NAME[candidate]
    raise Unsupported(f"unknown architecture {name!r}; choose one of {', '.join(_BY_NAME)}.")


def of_capability(major: int, minor: int) -> Arch:
    """The architecture of a GPU's compute capability; an unknown minor runs the one below."""
    known = [a for a in ARCHES if a.sm_version[0] == major and a.sm_version[1] <= minor]
    if not known:
        raise Unsupported(
            f"compute capability {major}.{minor} is not supported; supported are "
            f"{', '.join(a.compute_capability for a in ARCHES)}; use a GPU of one of these."
        )
    return max(known, key=lambda arch: arch.sm_version)
