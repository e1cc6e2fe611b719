"""Starting a loaded kernel on CUDA with as little work on the host as possible."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import c_char, c_char_p, c_int, c_uint, c_void_p
from functools import cache

from flashsmith.kernels.launch import LaunchGeometry
from flashsmith.runtime.cuda.driver import Driver
from flashsmith.runtime.device import Launcher

_Start = Callable[[ctypes.Array[c_char_p], int], None]
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
    """What starts `function` with `geometry`; the parameters and the stream come with each call.

    The driver copies the parameters during the call, so pointers into the caller's bytes suffice:
    an array of `char*` over them is the `void**` it asks for.
    """
    start = _start_clustered if geometry.cluster > 1 else _start_plain
    start_kernel = start(driver, function, geometry)
    get_current = driver.bare("cuCtxGetCurrent")
    byref = ctypes.byref

    def launch(params: tuple[bytes, ...], stream: int = 0) -> None:
        current = c_void_p()
        get_current(byref(current))
        pointers = _pointers_type(len(params))(*params)
        if current.value == context:
            start_kernel(pointers, stream)
            return
        driver.call("cuCtxPushCurrent_v2", context)
        try:
            start_kernel(pointers, stream)
        finally:
            driver.pointer("cuCtxPopCurrent_v2")

    return launch


def _start_plain(driver: Driver, function: int, geometry: LaunchGeometry) -> _Start:
    launch_kernel = driver.bare("cuLaunchKernel")
    # Made once: converting eleven Python numbers takes as long as the call itself.
    shape = (*geometry.grid, geometry.threads, 1, 1, geometry.smem_bytes)
    fixed = (c_void_p(function), *(c_uint(number) for number in shape))

    def start(pointers: ctypes.Array[c_char_p], stream: int) -> None:
        code = launch_kernel(*fixed, c_void_p(stream), pointers, None)
        if code:
            raise driver.error("cuLaunchKernel", code)

    return start


def _start_clustered(driver: Driver, function: int, geometry: LaunchGeometry) -> _Start:
    launch_kernel = driver.bare("cuLaunchKernelEx")
    attribute = _ClusterAttribute(id=_CLUSTER_DIMENSION, x=geometry.cluster, y=1, z=1)
    grid = (c_uint * 3)(*geometry.grid)
    block = (c_uint * 3)(geometry.threads, 1, 1)
    attributes = ctypes.addressof(attribute)
    handle = c_void_p(function)

    def start(pointers: ctypes.Array[c_char_p], stream: int) -> None:
        config = _LaunchConfig(grid, block, geometry.smem_bytes, stream, attributes, 1)
        code = launch_kernel(ctypes.byref(config), handle, pointers, None)
        if code:
            raise driver.error("cuLaunchKernelEx", code)

    start.keeps = attribute  # type: ignore[attr-defined]  # the configuration points to it
    return start


@cache
def _pointers_type(count: int) -> type[ctypes.Array[c_char_p]]:
    return c_char_p * count
