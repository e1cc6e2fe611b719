"""The emulator behind the Device protocol: runs a kernel's PTX on the CPU, checks on."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Hashable
from contextlib import AbstractContextManager
from functools import cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flashsmith.arch import get as get_arch
from flashsmith.base.errors import Unsupported
from flashsmith.base.forks import call_in_forked_child
from flashsmith.compile.artefact import CompiledKernel, PtxKernel
from flashsmith.emulator.checks.launch_checks import most_registers
from flashsmith.emulator.copies.tensor_map import encode_tensor_map
from flashsmith.emulator.memory import GlobalMemory
from flashsmith.emulator.options import EmulatorOptions, LaunchReport
from flashsmith.emulator.program import Program, load
from flashsmith.kernels.arguments import TensorMapSpec
from flashsmith.kernels.launch import LaunchGeometry
from flashsmith.runtime.device import Launcher, Start

DEFAULT_ARCH = "sm_90a"  # the architecture whose PTX covers every kernel family
DEFAULT_SM_COUNT = 4  # small, so that persistent kernels take several tiles a block


_devices: weakref.WeakSet[EmulatedDevice] = weakref.WeakSet()


@call_in_forked_child
def _separate_devices() -> None:
    for device in list(_devices):
        device._after_fork()


class EmulatedDevice:
    """Memory and kernels of one emulator; launches run to their end before they return."""

    def __init__(
        self,
        arch: str = DEFAULT_ARCH,
        *,
        sm_count: int = DEFAULT_SM_COUNT,
        options: EmulatorOptions | None = None,
    ) -> None:
        self._arch = get_arch(arch).name
        self._sm_count = sm_count
        self.options = options if options is not None else EmulatorOptions()
        self.memory = GlobalMemory()
        self._last_report: LaunchReport | None = None
        self._programs: dict[tuple[str, str], Program] = {}
        self._workspace = (0, 0)  # address, bytes
        self._scratch = (0, 0)
        self._kernels: dict[Hashable, PtxKernel] = {}
        # Threads may share the device as they may share a GPU: one operation at a time.
        self._lock = threading.RLock()
        _devices.add(self)

    def _after_fork(self) -> None:
        """In a child: a lock that no thread of the parent holds, and memory apart from it."""
        self._lock = threading.RLock()
        self.memory.separate()

    @property
    def name(self) -> str:
        """`emulator`."""
        return "emulator"

    @property
    def arch(self) -> str:
        """The architecture kernels are compiled for."""
        return self._arch

    @property
    def sm_count(self) -> int:
        """The streaming multiprocessors that a persistent kernel sizes its grid by."""
        return self._sm_count

    @property
    def runs_ptx(self) -> bool:
        """It interprets PTX."""
        return True

    @property
    def can_time(self) -> bool:
        """How long a launch takes says nothing of a GPU."""
        return False

    @property
    def kernels(self) -> dict[Hashable, PtxKernel]:
        """Kernels that were loaded, by what they compute and how."""
        return self._kernels

    def report(self) -> LaunchReport | None:
        """What was counted in the last launch."""
        return self._last_report

    def in_fixed_order(self) -> EmulatedDevice:
        """One whose tensor-core sums come one instruction after the other, unchecked: faster."""
        return _in_fixed_order(self._arch)

    def allocate(self, n_bytes: int) -> int:
        """The address of new memory, aligned to 256 bytes."""
        with self._lock:
            return self.memory.allocate(max(n_bytes, 1))

    def free(self, address: int) -> None:
        """Gives memory back."""
        with self._lock:
            self.memory.free(address)

    def upload(self, address: int, data: NDArray[Any]) -> None:
        """Copies the bytes of a contiguous array to the device."""
        if data.nbytes:
            with self._lock:
                self.memory.write(address, np.ascontiguousarray(data))

    def download(self, address: int, n_bytes: int) -> NDArray[np.uint8]:
        """Copies bytes from the device."""
        if not n_bytes:
            return np.empty(0, np.uint8)
        with self._lock:
            return np.array(self.memory.read(address, n_bytes)).view(np.uint8).reshape(-1)

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
        values = np.full(words, word, np.uint32)
        with self._lock:
            for row in range(rows if words else 0):
                self.memory.write(address + row * pitch_bytes, values)

    def workspace(self, n_bytes: int, stream: int = 0) -> int:
        """Memory for one launch, zero at first; kernels leave its start zero."""
        with self._lock:
            address, size = self._workspace
            if size < n_bytes:
                address = self.allocate(n_bytes)
                self.upload(address, np.zeros(n_bytes, np.uint8))
                self._workspace = (address, n_bytes)
            return address

    def scratch(self, n_bytes: int, stream: int = 0) -> int:
        """Memory for the launches of one call; it holds anything, before and after."""
        with self._lock:
            address, size = self._scratch
            if size < n_bytes:
                if size:
                    self.memory.free(address)
                self._scratch = (self.allocate(n_bytes), n_bytes)
            return self._scratch[0]

    def one_call(self) -> AbstractContextManager[object]:
        """Held while the launches of a call run; a fault of one forgets the workspace of all."""
        return self._lock

    def tensor_map(self, spec: TensorMapSpec) -> bytes:
        """The 128 bytes that an emulated kernel takes as a tensor map."""
        return encode_tensor_map(
            spec.address,
            spec.element_bytes,
            spec.dims,
            spec.strides_bytes,
            spec.box,
            spec.swizzle_bytes,
            "f16" if spec.element_bytes == 2 and not spec.is_bf16 else None,
        )

    def prepare(self, kernel: PtxKernel, geometry: LaunchGeometry) -> Launcher:
        """Translates a kernel's PTX and returns what takes its parameters."""
        if kernel.arch != self._arch:
            raise Unsupported(
                f"{kernel.name} was compiled for {kernel.arch}; this emulator runs {self._arch}."
            )
        program = self._load(kernel)
        # Without machine code: so many that no more blocks run together than do on a GPU.
        registers = most_registers(program.kernel, geometry.threads)
        if isinstance(kernel, CompiledKernel):
            registers = kernel.resources.registers

        def run(params: tuple[bytes, ...], stream: int) -> None:
            with self._lock:
                try:
                    self._last_report = program.launch(
                        geometry.grid,
                        geometry.threads,
                        geometry.smem_bytes,
                        params,
                        self.memory,
                        cluster=geometry.cluster,
                        options=self.options,
                        registers=registers,
                        sm_count=self._sm_count,
                    )
                except BaseException:  # a fault, or an interrupt in the middle of the launch
                    self._forget_workspace()
                    raise

        def bind(params: tuple[bytes, ...]) -> Start:
            return partial(run, params)

        return bind

    def launch(
        self,
        kernel: PtxKernel,
        geometry: LaunchGeometry,
        params: tuple[bytes, ...],
        *,
        stream: int = 0,
    ) -> None:
        """Runs a kernel to its end; every fault the checks find is raised here."""
        self.prepare(kernel, geometry)(params)(stream)

    def synchronize(self) -> None:
        """Nothing is ever in flight."""

    def _forget_workspace(self) -> None:
        """A kernel that was stopped left its counters as they were: the next one gets others."""
        (address, _), self._workspace = self._workspace, (0, 0)
        if address:
            self.memory.free(address)

    def _load(self, kernel: PtxKernel) -> Program:
        key = (kernel.key, kernel.name)
        with self._lock:
            if key not in self._programs:
                self._programs[key] = load(kernel.ptx)
            return self._programs[key]


@cache
def _in_fixed_order(arch: str) -> EmulatedDevice:
    return EmulatedDevice(arch, options=EmulatorOptions(checks=False, mma_in_order=True))
