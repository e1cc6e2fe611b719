"""Starting a loaded kernel on CUDA with as little work on the host as possible."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import c_char, c_char_p, c_int, c_uint, c_void_p

from flashsmith.base.loose_types import CLibrary
from flashsmith.kernels.launch import LaunchGeometry
from flashsmith.runtime.cuda.driver import Driver
from flashsmith.runtime.device import Launcher, Start

_Pointers = ctypes.Array[c_char_p]
_Arguments = tuple[object, ...]  # of a launch, as ctypes takes them
_ArgumentsOf = Callable[[_Pointers, int], _Arguments]  # of parameters and a stream
_CLUSTER_DIMENSION = 4  # CUlaunchAttributeID
_PROGRAMMATIC_STREAM_SERIALIZATION = 6


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute: of its union of 64 bytes a cluster's shape, or a flag."""

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
    attributes = _attributes(geometry)
    name = "cuLaunchKernelEx" if attributes else "cuLaunchKernel"
    arguments_of = _plain(function, geometry)
    if attributes:
        arguments_of = _extended(function, geometry, attributes)
    launch_kernel, get_current = driver.bare(name), driver.bare("cuCtxGetCurrent")
    byref = ctypes.byref

    def bind(params: tuple[bytes, ...]) -> Start:
        pointers = (c_char_p * len(params))(*params)
        on_default = arguments_of(pointers, 0)

        def start(stream: int) -> None:
            current = c_void_p()
            get_current(byref(current))
            arguments = arguments_of(pointers, stream) if stream else on_default
            if current.value == context:
                code = launch_kernel(*arguments)
            else:
                code = _launched_in(driver, context, launch_kernel, arguments)
            if code:
                raise driver.error(name, code)

        return start

    return bind


def _launched_in(
    driver: Driver, context: int, launch_kernel: CLibrary, arguments: _Arguments
) -> int:
    """The result of a launch while `context` is current in this thread."""
    driver.call("cuCtxPushCurrent_v2", context)
    try:
        return int(launch_kernel(*arguments))
    finally:
        driver.pointer("cuCtxPopCurrent_v2")


def _plain(function: int, geometry: LaunchGeometry) -> _ArgumentsOf:
    # Made once: converting eleven Python numbers takes as long as the call itself.
    shape = (*geometry.grid, geometry.threads, 1, 1, geometry.smem_bytes)
    fixed = (c_void_p(function), *(c_uint.from_param(number) for number in shape))

    def arguments(pointers: _Pointers, stream: int) -> _Arguments:
        at = ctypes.byref(pointers)
        return (*fixed, c_void_p(stream) if stream else None, at, None)

    return arguments


def _attributes(geometry: LaunchGeometry) -> list[_Attribute]:
    found = []
    if geometry.cluster > 1:
        found.append(_Attribute(id=_CLUSTER_DIMENSION, x=geometry.cluster, y=1, z=1))
    if geometry.is_early:
        found.append(_Attribute(id=_PROGRAMMATIC_STREAM_SERIALIZATION, x=1))
    return found


def _extended(
    function: int, geometry: LaunchGeometry, attributes: list[_Attribute]
) -> _ArgumentsOf:
    kept = (_Attribute * len(attributes))(*attributes)
    grid = (c_uint * 3)(*geometry.grid)
    block = (c_uint * 3)(geometry.threads, 1, 1)
    place, count = ctypes.addressof(kept), len(attributes)
    handle = c_void_p(function)

    def arguments(pointers: _Pointers, stream: int) -> _Arguments:
        config = _LaunchConfig(grid, block, geometry.smem_bytes, stream, place, count)
        return ctypes.byref(config), handle, ctypes.byref(pointers), None

    arguments.keeps = kept  # type: ignore[attr-defined]  # the configuration points to it
    return arguments
