"""The CUDA driver library: the calls flashsmith makes, typed, checked, and named when they fail."""

from __future__ import annotations

import ctypes
import sys
import threading
from ctypes import POINTER, c_char_p, c_float, c_int, c_size_t, c_uint, c_ulonglong, c_void_p

from flashsmith.base.errors import DeviceMissing, LaunchError
from flashsmith.base.forks import call_in_forked_child
from flashsmith.base.loose_types import CLibrary

# The driver is called through ctypes, not cuda.bindings: importing that takes 80 ms, which is
# most of what a first call with a warm kernel cache may take.
_Out = c_void_p  # a pointer the driver writes through; callers pass `ctypes.byref(...)`
_PROTOTYPES: dict[str, tuple[type[object], ...]] = {
    "cuInit": (c_uint,),
    "cuDriverGetVersion": (_Out,),
    "cuDeviceGetCount": (_Out,),
    "cuDeviceGet": (_Out, c_int),
    "cuDeviceGetName": (_Out, c_int, c_int),
    "cuDeviceGetPCIBusId": (_Out, c_int, c_int),
    "cuDeviceGetAttribute": (_Out, c_int, c_int),
    "cuDevicePrimaryCtxRetain": (_Out, c_int),
    "cuCtxGetCurrent": (_Out,),
    "cuCtxGetDevice": (_Out,),
    "cuCtxPushCurrent_v2": (c_void_p,),
    "cuCtxPopCurrent_v2": (_Out,),
    "cuCtxSynchronize": (),
    "cuMemAlloc_v2": (_Out, c_size_t),
    "cuMemFree_v2": (c_ulonglong,),
    "cuMemcpyHtoD_v2": (c_ulonglong, c_void_p, c_size_t),
    "cuMemcpyDtoH_v2": (c_void_p, c_ulonglong, c_size_t),
    "cuMemsetD32Async": (c_ulonglong, c_uint, c_size_t, c_void_p),
    "cuMemsetD2D32Async": (c_ulonglong, c_size_t, c_uint, c_size_t, c_size_t, c_void_p),
    "cuModuleLoadData": (_Out, c_void_p),
    "cuModuleGetFunction": (_Out, c_void_p, c_char_p),
    "cuFuncSetAttribute": (c_void_p, c_int, c_int),
    "cuLaunchKernel": (c_void_p, *([c_uint] * 7), c_void_p, c_void_p, c_void_p),
    "cuLaunchKernelEx": (c_void_p, c_void_p, c_void_p, c_void_p),
    "cuTensorMapEncodeTiled": (
        *(_Out, c_int, c_uint, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p),
        *(c_int, c_int, c_int, c_int),
    ),
    "cuStreamCreate": (_Out, c_uint),
    "cuStreamDestroy_v2": (c_void_p,),
    "cuStreamSynchronize": (c_void_p,),
    "cuStreamIsCapturing": (c_void_p, _Out),
    "cuStreamGetCaptureInfo_v2": (c_void_p, _Out, _Out, c_void_p, c_void_p, c_void_p),
    "cuThreadExchangeStreamCaptureMode": (_Out,),
    "cuStreamBeginCapture_v2": (c_void_p, c_int),
    "cuStreamEndCapture": (c_void_p, _Out),
    "cuGraphInstantiateWithFlags": (_Out, c_void_p, c_ulonglong),
    "cuGraphLaunch": (c_void_p, c_void_p),
    "cuGraphExecDestroy": (c_void_p,),
    "cuGraphDestroy": (c_void_p,),
    "cuEventCreate": (_Out, c_uint),
    "cuEventDestroy_v2": (c_void_p,),
    "cuEventRecord": (c_void_p, c_void_p),
    "cuEventSynchronize": (c_void_p,),
    "cuEventElapsedTime": (POINTER(c_float), c_void_p, c_void_p),
}
_FORKED = (
    "this process was forked from one that had started CUDA, which does not survive a fork; start "
    "processes with multiprocessing's 'spawn' or 'forkserver' method"
)
_ADVICE = {
    "CUDA_ERROR_NOT_INITIALIZED": _FORKED,
    "CUDA_ERROR_NO_BINARY_FOR_GPU": "the kernel was compiled for another architecture",
    "CUDA_ERROR_INVALID_IMAGE": (
        "the driver is older than the compiler, install flashsmith[cu12] or a newer driver"
    ),
    "CUDA_ERROR_UNSUPPORTED_PTX_VERSION": (
        "the driver is older than the compiler, install flashsmith[cu12] or a newer driver"
    ),
    "CUDA_ERROR_ILLEGAL_ADDRESS": (
        "a kernel touched memory that is not its own; run it with `--device emulator` to see where"
    ),
    "CUDA_ERROR_OUT_OF_MEMORY": "lower the batch or free memory on the GPU",
    "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED": (
        "a CUDA graph is being captured, which allows no waiting and no copies from or to the "
        "host; capture calls on arrays of the GPU, or call before the capture"
    ),
}


class Driver:
    """The driver library of this process; every call raises `LaunchError` unless it succeeds."""

    def __init__(self, library: CLibrary) -> None:
        self._library = library
        self._functions: dict[str, CLibrary] = {}

    def function(self, name: str) -> CLibrary:
        """The function `name`, which returns a result code."""
        found = self._functions.get(name)
        if found is None:
            try:
                found = getattr(self._library, name)
            except AttributeError:
                raise LaunchError(
                    name, "no such function", "the CUDA driver is too old, 12.0 is the oldest"
                ) from None
            found.argtypes = _PROTOTYPES[name]
            found.restype = c_int
            self._functions[name] = found
        return found

    def bare(self, name: str) -> CLibrary:
        """A copy of the function `name` that converts no argument: all must be ctypes values."""
        self.function(name)  # said where the driver lacks it
        found = self._library[name]
        found.restype = c_int
        return found

    def call(self, name: str, *arguments: object) -> None:
        """Calls the driver's `name`."""
        code = self.function(name)(*arguments)
        if code:
            raise self.error(name, code)

    def pointer(self, name: str, *arguments: object) -> int:
        """The pointer or handle that the driver's `name` returns through its first argument."""
        out = c_void_p()
        self.call(name, ctypes.byref(out), *arguments)
        return out.value or 0

    def integer(self, name: str, *arguments: object) -> int:
        """The int that the driver's `name` returns through its first argument."""
        out = c_int()
        self.call(name, ctypes.byref(out), *arguments)
        return out.value

    def integer_from(self, name: str, *arguments: object) -> int:
        """The int that the driver's `name` returns through its last argument."""
        out = c_int()
        self.call(name, *arguments, ctypes.byref(out))
        return out.value

    def pointer_from(self, name: str, *arguments: object) -> int:
        """The handle that the driver's `name` returns through its last argument."""
        out = c_void_p()
        self.call(name, *arguments, ctypes.byref(out))
        return out.value or 0

    def text(self, name: str, *arguments: object) -> str:
        """The text that the driver's `name` writes into its first argument."""
        out = ctypes.create_string_buffer(256)
        self.call(name, out, len(out), *arguments)
        return out.value.decode()

    def error(self, name: str, code: int) -> LaunchError:
        """The error of a call that returned `code`."""
        result = self._error_name(code)
        return LaunchError(name, result, _ADVICE.get(result, ""))

    def _error_name(self, code: int) -> str:
        out = c_char_p()
        self._library.cuGetErrorName(c_int(code), ctypes.byref(out))
        return out.value.decode() if out.value else f"error {code}"

    @property
    def version(self) -> tuple[int, int]:
        """The newest CUDA version the driver runs, as (13, 0)."""
        number = self.integer("cuDriverGetVersion")
        return number // 1000, number % 1000 // 10


_lock = threading.Lock()
_found: list[Driver | str] = []  # one item once looked for: the driver, or why there is none
_is_lost = False  # this process was forked from one that had started the driver


@call_in_forked_child
def _lose_driver() -> None:
    global _lock, _is_lost
    _lock = threading.Lock()
    _is_lost = _is_lost or any(isinstance(found, Driver) for found in _found)


def find_driver() -> Driver | str:
    """The driver of a machine with a GPU, or a sentence saying why there is none.

    Raises in a forked child: no call to the driver works there once its parent made one.
    """
    if _is_lost:
        raise DeviceMissing(f"No CUDA device: {_FORKED}.")
    with _lock:
        if not _found:
            _found.append(_look_for_driver())
    return _found[0]


def require_driver() -> Driver:
    """The driver; raises `DeviceMissing` where there is no GPU."""
    found = find_driver()
    if isinstance(found, str):
        raise DeviceMissing(f"No CUDA device: {found}; use the emulator (`--device emulator`).")
    return found


def _look_for_driver() -> Driver | str:
    name = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
    try:
        library = ctypes.CDLL(name)
    except OSError:
        return f"{name} cannot be loaded"
    driver = Driver(library)
    try:
        driver.call("cuInit", 0)
        count = driver.integer("cuDeviceGetCount")
    except LaunchError as error:
        return str(error).rstrip(".")
    return driver if count else "the driver sees no GPU"
