"""Whether a compiled kernel fits one block of a GPU, said before the driver refuses it."""

from __future__ import annotations

from flashsmith.arch import Arch
from flashsmith.base.errors import OutOfResources
from flashsmith.compile.artefact import CompiledKernel, PtxKernel
from flashsmith.kernels.launch import LaunchGeometry

MAX_GRID_X = 2**31 - 1  # CUDA C++ Programming Guide, "Compute Capabilities"


def require_fits(subject: str, kernel: PtxKernel, geometry: LaunchGeometry, arch: Arch) -> None:
    """Raises `OutOfResources` with need, limit and what to lower; `subject` is a short form.

    What only machine code says is looked at where there is any; the emulator reads PTX for it.
    """
    smem_bytes, registers = geometry.smem_bytes, 0
    if isinstance(kernel, CompiledKernel):
        smem_bytes += kernel.resources.static_smem_bytes
        registers = kernel.resources.registers * geometry.threads
    for what, needed, limit, advice in (
        (
            f"bytes of shared memory a block on {arch.name}",
            smem_bytes,
            arch.max_smem_per_block,
            "lower B_r, B_c or d_head",
        ),
        (
            f"registers a block on {arch.name}",
            registers,
            arch.registers_per_block,
            "lower the warps or B_r",
        ),
        ("threads a block", geometry.threads, arch.max_threads_per_block, "lower the warps"),
        ("blocks a launch", geometry.grid[0], MAX_GRID_X, "split the batch"),
    ):
        if needed > limit:
            raise OutOfResources(subject, what, needed, limit, advice)
