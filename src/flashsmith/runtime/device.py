"""What a device is: memory, kernels loaded from artefacts, launches; CUDA and emulator alike."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from flashsmith.compile.artefact import PtxKernel
from flashsmith.kernels.arguments import TensorMapSpec
from flashsmith.kernels.launch import LaunchGeometry

if TYPE_CHECKING:  # a call on a GPU does not need the emulator's modules
    from flashsmith.emulator.options import LaunchReport

# Starts a kernel with its parameters; takes the handle of a stream (0: the default).
Start = Callable[[int], None]
# Of a prepared kernel: takes parameters as raw bytes once, for launches that are made many times.
Launcher = Callable[[tuple[bytes, ...]], Start]


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

    @property
    def runs_ptx(self) -> bool:
        """Whether kernels run from their PTX; if not, from their cubin."""

    @property
    def can_time(self) -> bool:
        """Whether the time that a kernel takes here means something."""

    @property
    def kernels(self) -> dict[Hashable, PtxKernel]:
        """Kernels that were loaded, by what they compute and how."""

    def report(self) -> LaunchReport | None:
        """What was counted in the last launch, where that is done."""

    def in_fixed_order(self) -> Device:
        """This device, or one like it, whose tensor cores add up as hardware does."""

    def allocate(self, n_bytes: int) -> int:
        """The address of new memory, aligned to 256 bytes."""

    def free(self, address: int) -> None:
        """Gives memory back."""

    def upload(self, address: int, data: NDArray[Any]) -> None:
        """Copies the bytes of a contiguous array to the device."""

    def download(self, address: int, n_bytes: int) -> NDArray[np.uint8]:
        """Copies bytes from the device, after all launches before."""

    def fill(
        self,
        address: int,
        word: int,
        words: int,
        *,
        rows: int = 1,
        pitch_bytes: int = 0,
        stream: int = 0,
    ) -> None:
        """Sets `words` 32-bit words to `word`, in each of `rows` rows that begin a pitch apart."""

    def workspace(self, n_bytes: int, stream: int = 0) -> int:
        """Memory for one launch on `stream`, zero at first; kernels leave its start zero.

        How much of it is a family's: all of its kernels keep counters there, and what need not be
        zero behind them.
        """

    def scratch(self, n_bytes: int, stream: int = 0) -> int:
        """Memory for the launches of one call on `stream`; it holds anything, before and after."""

    def one_call(self) -> AbstractContextManager[object]:
        """Held while the launches of a call are started: they share workspace and scratch.

        Threads that use one device wait for each other here.
        """

    def tensor_map(self, spec: TensorMapSpec) -> bytes:
        """The 128 bytes that a kernel takes as a tensor map on this device."""

    def prepare(self, kernel: PtxKernel, geometry: LaunchGeometry) -> Launcher:
        """Loads a kernel and returns what takes its parameters; for many launches of it."""

    def launch(
        self,
        kernel: PtxKernel,
        geometry: LaunchGeometry,
        params: tuple[bytes, ...],
        *,
        stream: int = 0,
    ) -> None:
        """Starts a kernel; errors of the launch itself are raised here."""

    def synchronize(self) -> None:
        """Waits for all launches; errors of running kernels are raised here."""
