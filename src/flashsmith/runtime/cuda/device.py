"""A CUDA GPU behind the Device protocol: cubins, launches and memory through the driver."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Hashable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from flashsmith.arch import of_capability
from flashsmith.base.errors import DeviceMissing, LaunchError
from flashsmith.compile.artefact import CompiledKernel, PtxKernel
from flashsmith.kernels.arguments import TensorMapSpec
from flashsmith.kernels.launch import LaunchGeometry
from flashsmith.runtime.cuda.driver import Driver, require_driver
from flashsmith.runtime.cuda.launcher import make_launcher
from flashsmith.runtime.cuda.tensor_map import encode_tensor_map
from flashsmith.runtime.device import Launcher

if TYPE_CHECKING:
    from flashsmith.emulator.options import LaunchReport

# CUdevice_attribute
_SM_COUNT = 16
_CAPABILITY_MAJOR, _CAPABILITY_MINOR = 75, 76
# CUfunction_attribute
_MAX_DYNAMIC_SMEM = 8
_ELF_MAGIC = b"\x7fELF"
_CAPTURE_NONE = 0  # CUstreamCaptureStatus
_CAPTURE_RELAXED = 2  # CUstreamCaptureMode
_PER_THREAD = 2  # CU_STREAM_PER_THREAD: one handle that means another stream in every thread
_NOTHING = (0, 0)  # a workspace of no bytes
_ON_DEFAULT = ("workspace", 0, 0, 0)  # that of the default stream
_NON_BLOCKING = 1  # CUstream_flags: not ordered against the default stream


class CudaDevice:
    """One GPU in its primary context, which torch and other libraries of the process share."""

    def __init__(self, ordinal: int = 0) -> None:
        self.driver: Driver = require_driver()
        count = self.driver.integer("cuDeviceGetCount")
        if not 0 <= ordinal < count:
            raise DeviceMissing(f"CUDA device {ordinal} was asked for; there are {count}.")
        self.ordinal = ordinal
        handle = self.driver.integer("cuDeviceGet", ordinal)
        self.handle = handle
        self._name = self.driver.text("cuDeviceGetName", handle)
        self._sm_count = self.driver.integer("cuDeviceGetAttribute", _SM_COUNT, handle)
        major = self.driver.integer("cuDeviceGetAttribute", _CAPABILITY_MAJOR, handle)
        minor = self.driver.integer("cuDeviceGetAttribute", _CAPABILITY_MINOR, handle)
        self._arch = of_capability(major, minor).name
        self.context = self.driver.pointer("cuDevicePrimaryCtxRetain", handle)
        self._lock = threading.Lock()
        self._call_lock = threading.RLock()
        self._functions: dict[tuple[str, str], int] = {}
        self._smem_raised: dict[int, int] = {}
        # Address and bytes of each stream's workspace and scratch; a stream is a handle and, for
        # some handles, a thread; of one that captures, also each capture.
        self._workspaces: dict[tuple[str, int, int, int], tuple[int, int]] = {}
        self._kernels: dict[Hashable, PtxKernel] = {}

    @property
    def name(self) -> str:
        """`NVIDIA H200`."""
        return self._name

    @property
    def arch(self) -> str:
        """The architecture kernels are compiled for, `sm_90a`."""
        return self._arch

    @property
    def sm_count(self) -> int:
        """Streaming multiprocessors."""
        return self._sm_count

    @property
    def runs_ptx(self) -> bool:
        """Kernels are loaded as machine code."""
        return False

    @property
    def can_time(self) -> bool:
        """It is a GPU."""
        return True

    @property
    def kernels(self) -> dict[Hashable, PtxKernel]:
        """Kernels that were loaded, by what they compute and how."""
        return self._kernels

    def report(self) -> LaunchReport | None:
        """A GPU counts nothing by itself."""
        return None

    def in_fixed_order(self) -> CudaDevice:
        """It is hardware."""
        return self

    @contextmanager
    def current(self) -> Iterator[None]:
        """Makes this device's context current in this thread, and restores the one before."""
        if self.driver.pointer("cuCtxGetCurrent") == self.context:
            yield
            return
        self.driver.call("cuCtxPushCurrent_v2", self.context)
        try:
            yield
        finally:
            self.driver.pointer("cuCtxPopCurrent_v2")

    @contextmanager
    def _set_up(self) -> Iterator[None]:
        """Like `current`, and lets this thread allocate and load while it captures a graph."""
        mode = ctypes.c_int(_CAPTURE_RELAXED)
        with self.current():
            self.driver.call("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))
            try:
                yield
            finally:
                self.driver.call("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))

    def allocate(self, n_bytes: int) -> int:
        """The address of new memory, aligned to 256 bytes."""
        with self._set_up():
            return self.driver.pointer("cuMemAlloc_v2", max(n_bytes, 4))

    def free(self, address: int) -> None:
        """Gives memory back."""
        with self._set_up():
            self.driver.call("cuMemFree_v2", address)

    def upload(self, address: int, data: NDArray[Any]) -> None:
        """Copies the bytes of a contiguous array to the device."""
        data = np.ascontiguousarray(data)
        if data.nbytes:
            with self.current():
                self.driver.call("cuMemcpyHtoD_v2", address, data.ctypes.data, data.nbytes)

    def download(self, address: int, n_bytes: int) -> NDArray[np.uint8]:
        """Copies bytes from the device, after all launches before."""
        self.synchronize()
        out = np.empty(n_bytes, np.uint8)
        if n_bytes:
            with self.current():
                self.driver.call("cuMemcpyDtoH_v2", out.ctypes.data, address, n_bytes)
        return out

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
        if words and rows:
            with self.current():
                if rows == 1:
                    self.driver.call("cuMemsetD32Async", address, word, words, stream)
                else:
                    self.driver.call(
                        "cuMemsetD2D32Async", address, pitch_bytes, word, words, rows, stream
                    )

    def workspace(self, n_bytes: int, stream: int = 0) -> int:
        """Memory for one launch on `stream`, zero at first; kernels leave its start zero.

        Launches of a stream follow each other and share it. Those that are captured have their own,
        one a capture, because the graph may run at the same time as anything else; it stays for as
        long as the process lives.
        """
        if not stream:  # where most calls are, and nothing captures
            address, size = self._workspaces.get(_ON_DEFAULT, _NOTHING)
            if size >= n_bytes:
                return address
        return self._kept("workspace", n_bytes, stream)

    def scratch(self, n_bytes: int, stream: int = 0) -> int:
        """Memory for the launches of one call on `stream`; it holds anything, before and after.

        It is kept as a workspace is, in powers of two: lengths that grow step by step take at most
        as much again. Callers with an allocator of their own bring the memory themselves.
        """
        return self._kept("scratch", 1 << max(n_bytes - 1, 1).bit_length(), stream)

    def one_call(self) -> AbstractContextManager[object]:
        """Held while the launches of a call are queued: none of another thread comes between."""
        return self._call_lock

    def _kept(self, what: str, n_bytes: int, stream: int) -> int:
        thread = threading.get_ident() if stream == _PER_THREAD else 0
        capture = self._capture_of(stream) if stream and self.is_capturing(stream) else 0
        key = what, stream, thread, capture
        address, size = self._workspaces.get(key, _NOTHING)
        if size < n_bytes:
            with self._lock:  # and looked at again: another thread may have made it
                address, size = self._workspaces.get(key, _NOTHING)
                if size < n_bytes:
                    address = self._zeroed(n_bytes)
                    self._workspaces[key] = (address, n_bytes)
        return address

    def _zeroed(self, n_bytes: int) -> int:
        """New memory, zeroed on a stream of its own: a capture would take a fill as its node."""
        address = self.allocate(n_bytes)
        with self._set_up():
            stream = self.driver.pointer("cuStreamCreate", _NON_BLOCKING)
            self.fill(address, 0, -(-n_bytes // 4), stream=stream)
            self.driver.call("cuStreamSynchronize", stream)
            self.driver.call("cuStreamDestroy_v2", stream)
        return address

    def is_capturing(self, stream: int) -> bool:
        """Whether work on `stream` goes into a graph instead of to the GPU."""
        if stream == 0:  # nothing captures it
            return False
        with self.current():
            return self.driver.integer_from("cuStreamIsCapturing", stream) != _CAPTURE_NONE

    def _capture_of(self, stream: int) -> int:
        """The number of the capture that `stream` is in: no two of a process have the same."""
        status, number = ctypes.c_int(), ctypes.c_ulonglong()
        out = ctypes.byref(status), ctypes.byref(number)
        with self.current():
            self.driver.call("cuStreamGetCaptureInfo_v2", stream, *out, None, None, None)
        return number.value

    def tensor_map(self, spec: TensorMapSpec) -> bytes:
        """The 128 bytes that a kernel takes as a tensor map."""
        with self.current():
            return encode_tensor_map(self.driver, spec)

    def prepare(self, kernel: PtxKernel, geometry: LaunchGeometry) -> Launcher:
        """Loads a kernel, allows it its shared memory, and returns what takes its parameters."""
        function = self._load(kernel)
        with self._lock, self._set_up():
            if geometry.smem_bytes > self._smem_raised.get(function, 0):
                self.driver.call(
                    "cuFuncSetAttribute", function, _MAX_DYNAMIC_SMEM, geometry.smem_bytes
                )
                self._smem_raised[function] = geometry.smem_bytes
        return make_launcher(self.driver, self.context, function, geometry)

    def launch(
        self,
        kernel: PtxKernel,
        geometry: LaunchGeometry,
        params: tuple[bytes, ...],
        *,
        stream: int = 0,
    ) -> None:
        """Starts a kernel; errors of the launch itself are raised here."""
        self.prepare(kernel, geometry)(params)(stream)

    def synchronize(self) -> None:
        """Waits for all launches; errors of running kernels are raised here."""
        with self.current():
            self.driver.call("cuCtxSynchronize")

    def _load(self, kernel: PtxKernel) -> int:
        """The driver's handle of a kernel, loaded from its cubin on first use."""
        key = (kernel.key, kernel.name)
        with self._lock:
            if key not in self._functions:
                self._functions[key] = self._load_cubin(kernel)
            return self._functions[key]

    def _load_cubin(self, kernel: PtxKernel) -> int:
        cubin = kernel.cubin if isinstance(kernel, CompiledKernel) else b""
        if not cubin.startswith(_ELF_MAGIC):
            raise LaunchError(
                "cuModuleLoadData",
                f"no cubin ({kernel.name})",
                "compile the kernel for the architecture of this GPU, PTX is not loaded",
            )
        with self._set_up():
            module = self.driver.pointer("cuModuleLoadData", cubin)
            return self.driver.pointer("cuModuleGetFunction", module, kernel.name.encode())
