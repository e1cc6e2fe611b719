"""What a device is: memory, kernels loaded from artefacts, launches; CUDA and emulator alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from flashsmith.compile.artefact import CompiledKernel


@dataclass(frozen=True, slots=True)
class TensorMapSpec:
    """A TMA tensor map in the terms of cuTensorMapEncodeTiled; innermost dimension first."""

    address: int
    element_bytes: int
    dims: tuple[int, ...]
    strides_bytes: tuple[int, ...]  # of dimensions 1 and up
    box: tuple[int, ...]
    swizzle_bytes: int = 128  # 0 (none), 32, 64 or 128
    is_bf16: bool = True
    l2_promotion_bytes: int = 256


@dataclass(frozen=True, slots=True)
class LaunchGeometry:
    """Blocks, threads and shared memory of one launch."""

    grid: tuple[int, int, int]
    threads: int
    smem_bytes: int
    cluster: int = 1


class Device(Protocol):
    """Memory addresses are integers on every device; a kernel parameter is its raw bytes."""

    @property
    def name(self) -> str:
        """`NVIDIA H200`, or `emulator`."""

    @property
    def arch(self) -> str:
        """The architecture kernels are compiled for, `sm_90a`."""

    @property
    def sm_count(self) -> int:
        """Streaming multiprocessors (what a persistent kernel sizes its grid by)."""

    def allocate(self, n_bytes: int) -> int:
        """The address of new memory, aligned to 256 bytes."""

    def free(self, address: int) -> None:
        """Gives memory back."""

    def upload(self, address: int, data: NDArray[Any]) -> None:
        """Copies the bytes of a contiguous array to the device."""

    def download(self, address: int, n_bytes: int) -> NDArray[np.uint8]:
        """Copies bytes from the device, after all launches before."""

    def tensor_map(self, spec: TensorMapSpec) -> bytes:
        """The 128 bytes that a kernel takes as a tensor map on this device."""

    def launch(
        self, kernel: CompiledKernel, geometry: LaunchGeometry, params: tuple[bytes, ...]
    ) -> None:
        """Starts a kernel; errors of the launch itself are raised here."""

    def synchronize(self) -> None:
        """Waits for all launches; errors of running kernels are raised here."""
