"""A CUDA driver of several GPUs that computes nothing: what is loaded and started where, and when.

Device memory is the host's. Each GPU has its primary context; a kernel belongs to the context it
was loaded in, and is refused in another. While a stream captures, a thread may allocate, free, load
and wait only after it has relaxed its capture mode.
"""

from __future__ import annotations

import ctypes
import threading
from contextlib import contextmanager
from dataclasses import dataclass

from flashsmith.runtime import devices
from flashsmith.runtime.cuda import driver

INVALID_CONTEXT, INVALID_HANDLE, CAPTURE_UNSUPPORTED = 201, 400, 900  # CUresult
_NAMES = {
    INVALID_CONTEXT: b"CUDA_ERROR_INVALID_CONTEXT",
    INVALID_HANDLE: b"CUDA_ERROR_INVALID_HANDLE",
    CAPTURE_UNSUPPORTED: b"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
}
_RELAXED = 2  # CUstreamCaptureMode
_ATTRIBUTES = {16: 132, 75: 9, 76: 0}  # SM count and compute capability of an H200
_FIRST_CONTEXT = 0x1000  # that of GPU 0; the others follow
MILLISECONDS = 0.25  # between any two events
_FUNCTIONS = {}  # of the driver, by name


@dataclass(frozen=True)
class Started:
    """One launch."""

    gpu: int
    kernel: str
    stream: int


def driver_function(name):
    """Marks the method that stands for the driver's `name`; it returns a result."""

    def mark(method):
        _FUNCTIONS[name] = method
        return method

    return mark


class StandInGpus:
    """The library that `Driver` calls."""

    def __init__(self, *names):
        self.names = names
        self.calls = []  # names of functions
        self.started, self.loaded = [], []  # launches; GPU and kernel
        self.capturing = set()  # streams
        self._memory, self._kernels = {}, {}
        self._thread = threading.local()
        self._handles = iter(range(1 << 20, 1 << 30))

    def __getattr__(self, name):
        if name not in _FUNCTIONS:
            raise AttributeError(name)

        def call(*arguments):
            self.calls.append(name)
            return _FUNCTIONS[name](self, *arguments)

        return call

    def __getitem__(self, name):
        return getattr(self, name)

    @contextmanager
    def current(self, gpu):
        """Makes a GPU current in this thread, as another library would."""
        self._stack().append(_FIRST_CONTEXT + gpu)
        yield
        self._stack().pop()

    @contextmanager
    def capture(self, stream):
        """Lets a stream capture."""
        self.capturing.add(stream)
        yield
        self.capturing.remove(stream)

    def _stack(self):
        if not hasattr(self._thread, "stack"):
            self._thread.stack, self._thread.mode = [], 0
        return self._thread.stack

    def _gpu(self):
        return self._stack()[-1] - _FIRST_CONTEXT if self._stack() else None

    def _refusal(self):
        """What a call returns that needs a context and is unsafe while a stream captures, or 0."""
        if self._gpu() is None:
            return INVALID_CONTEXT
        return CAPTURE_UNSUPPORTED if self.capturing and self._thread.mode != _RELAXED else 0

    @driver_function("cuInit")
    def _init(self, flags):
        return 0

    @driver_function("cuGetErrorName")
    def _error_name(self, code, out):
        return _give(out, _NAMES[_plain(code)])

    @driver_function("cuDeviceGetCount")
    def _count(self, out):
        return _give(out, len(self.names))

    @driver_function("cuDeviceGet")
    def _device(self, out, ordinal):
        return _give(out, ordinal)

    @driver_function("cuDeviceGetName")
    def _device_name(self, out, size, gpu):
        out.value = self.names[gpu].encode()
        return 0

    @driver_function("cuDeviceGetAttribute")
    def _attribute(self, out, which, gpu):
        return _give(out, _ATTRIBUTES[which])

    @driver_function("cuDevicePrimaryCtxRetain")
    def _retain(self, out, gpu):
        return _give(out, _FIRST_CONTEXT + gpu)

    @driver_function("cuCtxGetCurrent")
    def _current_context(self, out):
        return _give(out, self._stack()[-1] if self._stack() else None)

    @driver_function("cuCtxGetDevice")
    def _current_device(self, out):
        return INVALID_CONTEXT if self._gpu() is None else _give(out, self._gpu())

    @driver_function("cuCtxPushCurrent_v2")
    def _push(self, context):
        self._stack().append(_plain(context))
        return 0

    @driver_function("cuCtxPopCurrent_v2")
    def _pop(self, out):
        return _give(out, self._stack().pop())

    @driver_function("cuCtxSynchronize")
    def _synchronize(self):
        return self._refusal()

    @driver_function("cuThreadExchangeStreamCaptureMode")
    def _exchange(self, mode):
        before, self._thread.mode = self._thread.mode, mode._obj.value
        return _give(mode, before)

    @driver_function("cuStreamIsCapturing")
    def _is_capturing(self, stream, out):
        return _give(out, int(_plain(stream) in self.capturing))

    @driver_function("cuStreamGetCaptureInfo_v2")
    def _capture_info(self, stream, status, number, graph, dependencies, count):
        _give(status, int(_plain(stream) in self.capturing))
        return _give(number, _plain(stream))  # a stream is in one capture at a time

    @driver_function("cuStreamCreate")
    def _create_stream(self, out, flags):
        return _give(out, next(self._handles))

    @driver_function("cuStreamSynchronize")
    @driver_function("cuStreamDestroy_v2")
    def _use_stream(self, stream):
        return CAPTURE_UNSUPPORTED if _plain(stream) in self.capturing else 0

    @driver_function("cuEventCreate")
    def _create_event(self, out, flags):
        return _give(out, next(self._handles))

    @driver_function("cuEventRecord")
    def _record(self, event, stream):
        return 0

    @driver_function("cuEventSynchronize")
    @driver_function("cuEventDestroy_v2")
    def _use_event(self, event):
        return 0

    @driver_function("cuEventElapsedTime")
    def _elapsed(self, out, start, stop):
        return _give(out, MILLISECONDS)

    @driver_function("cuMemAlloc_v2")
    def _allocate(self, out, n_bytes):
        room = ctypes.create_string_buffer(n_bytes + 256)
        address = -(-ctypes.addressof(room) // 256) * 256
        self._memory[address] = room
        return self._refusal() or _give(out, address)

    @driver_function("cuMemFree_v2")
    def _free(self, address):
        del self._memory[address]
        return self._refusal()

    @driver_function("cuMemcpyHtoD_v2")
    @driver_function("cuMemcpyDtoH_v2")
    def _copy(self, to, source, n_bytes):
        ctypes.memmove(to, source, n_bytes)
        return self._refusal()

    @driver_function("cuMemsetD32Async")
    def _fill(self, address, word, words, stream):
        return self._use_stream(stream)

    @driver_function("cuModuleLoadData")
    def _load(self, out, image):
        return self._refusal() or _give(out, self._gpu() + 1)

    @driver_function("cuModuleGetFunction")
    def _function(self, out, module, name):
        handle = next(self._handles)
        self._kernels[handle] = (module - 1, name.decode())
        self.loaded.append((module - 1, name.decode()))
        return _give(out, handle)

    @driver_function("cuFuncSetAttribute")
    def _allow(self, function, what, value):
        return self._refusal() or self._not_here(function)

    @driver_function("cuTensorMapEncodeTiled")
    def _encode(self, *arguments):
        return 0

    @driver_function("cuLaunchKernel")
    def _launch(self, function, *rest):
        stream = rest[7]
        return self._start(function, stream)

    @driver_function("cuLaunchKernelEx")
    def _launch_clustered(self, config, function, params, extra):
        return self._start(function, config._obj.stream)

    def _start(self, function, stream):
        refused = self._not_here(function)
        if not refused:
            gpu, kernel = self._kernels[_plain(function)]
            self.started.append(Started(gpu, kernel, _plain(stream) or 0))
        return refused

    def _not_here(self, function):
        return 0 if self._kernels[_plain(function)][0] == self._gpu() else INVALID_HANDLE


def plug_in(monkeypatch, *names):
    """Gives this process GPUs of these names, and forgets them with the test."""
    gpus = StandInGpus(*names)
    monkeypatch.setattr(driver, "_found", [driver.Driver(gpus)])
    monkeypatch.setattr(devices, "_opened", {})
    return gpus


def plug_in_torch(monkeypatch):
    """One GPU, on which torch's tensors of the CPU are said to lie."""
    from flashsmith.api import launches
    from flashsmith.api.caches import kv_cache
    from flashsmith.torch_op import cache_call, cuda_kernel

    gpus = plug_in(monkeypatch, "NVIDIA H200")
    monkeypatch.setattr(
        cuda_kernel, "gpu_device", lambda view, backend: devices.default_device("cuda")
    )
    monkeypatch.setattr(cuda_kernel, "current_stream", lambda ordinal: 0)
    monkeypatch.setattr(launches, "KEPT_LAUNCHES", {})
    for module in (cuda_kernel, cache_call):
        monkeypatch.setattr(module, "KEPT_LAUNCHES", launches.KEPT_LAUNCHES)
    monkeypatch.setattr(kv_cache, "_run_again", None)
    return gpus


def _plain(value):
    return value.value if isinstance(value, ctypes._SimpleCData) else value


def _give(out, value):
    """Writes through a pointer that the caller made with `byref`."""
    out._obj.value = value
    return 0
