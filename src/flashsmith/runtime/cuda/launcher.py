"""Starting a loaded kernel on CUDA with as little work on the host as possible."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import c_char, c_char_p, c_int, c_uint, c_void_p

from flashsmith.kernels.launch import LaunchGeometry
from flashsmith.runtime.cuda.driver import Driver
from flashsmith.runtime.device import Launcher, Start

_Pointers = ctypes.Array[c_char_p]
_StartOn = Callable[[_Pointers], Start]
_CLUSTER_DIMENSION = 4  # CUlaunchAttributeID


class _ClusterAttribute(ctypes.Structure):
    """CUlaunchAttribute with a cluster shape in its union of 64 bytes."""

    _fields_ = (
        ("id", c_int),
        ("pad", c_char * 4),
        ("x", c_uint),
        ("y", c_uint),
        ("z", c_uint),
        ("rest", c_char * 52),
    )


class _LaunchConfig(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", c_uint * 3),
        ("block", c_uint * 3),
        ("smem_bytes", c_uint),
        ("stream", c_void_p),
        ("attributes", c_void_p),
        ("attribute_count", c_uint),
    )


def make_launcher(
    driver: Driver, context: int, function: int, geometry: LaunchGeometry
) -> Launcher:
    """What takes the parameters of `function` and starts it with `geometry`.

    The driver copies the parameters during the call, so pointers into the caller's bytes suffice:
    an array of `char*` over them is the `void**` it asks for. Threads may share it: it is read.
    """
    start_on = (_start_clustered if geometry.cluster > 1 else _start_plain)(
        driver, function, geometry
    )
    get_current = driver.bare("cuCtxGetCurrent")
    byref = ctypes.byref

    def bind(params: tuple[bytes, ...]) -> Start:
        start_kernel = start_on((c_char_p * len(params))(*params))

        def start(stream: int) -> None:
            current = c_void_p()
            get_current(byref(current))
            if current.value == context:
                start_kernel(stream)
                return
            driver.call("cuCtxPushCurrent_v2", context)
            try:
                start_kernel(stream)
            finally:
                driver.pointer("cuCtxPopCurrent_v2")

        return start

    return bind


def _start_plain(driver: Driver, function: int, geometry: LaunchGeometry) -> _StartOn:
    launch_kernel = driver.bare("cuLaunchKernel")
    # Made once: converting eleven Python numbers takes as long as the call itself.
    shape = (*geometry.grid, geometry.threads, 1, 1, geometry.smem_bytes)
    fixed = (c_void_p(function), *(c_uint(number) for number in shape))

    def on(pointers: _Pointers) -> Start:
        on_default = (*fixed, None, pointers, None)

        def start(stream: int) -> None:
            if stream:
                code = launch_kernel(*fixed, c_void_p(stream), pointers, None)
            else:
                code = launch_kernel(*on_default)
            if code:
                raise driver.error("cuLaunchKernel", code)

        return start

    return on


def _start_clustered(driver: Driver, function: int, geometry: LaunchGeometry) -> _StartOn:
    launch_kernel = driver.bare("cuLaunchKernelEx")
    attribute = _ClusterAttribute(id=_CLUSTER_DIMENSION, x=geometry.cluster, y=1, z=1)
    grid = (c_uint * 3)(*geometry.grid)
    block = (c_uint * 3)(geometry.threads, 1, 1)
    attributes = ctypes.addressof(attribute)
    handle = c_void_p(function)

    def on(pointers: _Pointers) -> Start:
        def start(stream: int) -> None:
            config = _LaunchConfig(grid, block, geometry.smem_bytes, stream, attributes, 1)
            code = launch_kernel(ctypes.byref(config), handle, pointers, None)
            if code:
                raise driver.error("cuLaunchKernelEx", code)

        start.keeps = attribute  # type: ignore[attr-defined]  # the configuration points to it
        return start

    return on
