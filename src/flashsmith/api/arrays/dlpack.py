"""Reads where an array lies from its DLPack capsule, which every array library can give."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char_p, c_int32, c_int64, c_uint8, c_uint16, c_uint64, c_void_p

from flashsmith.api.array_view import ArrayView, compact
from flashsmith.base.errors import ArgumentError

# DLDeviceType and DLDataTypeCode of dlpack.h
_DEVICES = {1: "cpu", 2: "cuda", 3: "cpu", 13: "cuda"}  # 3 is pinned, 13 managed memory
_DTYPES = {(2, 16): "float16", (4, 16): "bfloat16", (2, 32): "float32", (2, 64): "float64"}
_CODES = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 5: "complex", 6: "bool"}


class _DLTensor(ctypes.Structure):
    """DLTensor of dlpack.h; a DLManagedTensor begins with one."""

    _fields_ = (
        ("data", c_void_p),
        ("device_type", c_int32),
        ("device_id", c_int32),
        ("ndim", c_int32),
        ("dtype_code", c_uint8),
        ("dtype_bits", c_uint8),
        ("dtype_lanes", c_uint16),
        ("shape", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),
        ("byte_offset", c_uint64),
    )


_get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_get_pointer.restype = c_void_p
_get_pointer.argtypes = (ctypes.py_object, c_char_p)


def dlpack_view(name: str, capsule: object) -> ArrayView:
    """Where the array of a `dltensor` capsule lies.

    The capsule is read, not taken over: it frees itself, and the array must outlive the view.
    """
    tensor = _DLTensor.from_address(_get_pointer(capsule, b"dltensor"))
    device = _DEVICES.get(tensor.device_type)
    if device is None:
        raise ArgumentError(
            f"{name} is on a device of DLPack type {tensor.device_type}; put it on a CUDA GPU or "
            f"in the host's memory."
        )
    shape = tuple(tensor.shape[: tensor.ndim])
    bits, code = tensor.dtype_bits, tensor.dtype_code
    return ArrayView(
        name=name,
        shape=shape,
        strides=tuple(tensor.strides[: tensor.ndim]) if tensor.strides else compact(shape),
        dtype=_DTYPES.get((code, bits), f"{_CODES.get(code, 'type ')}{bits}"),
        address=(tensor.data or 0) + tensor.byte_offset,
        device=device if device == "cpu" else f"{device}:{tensor.device_id}",
    )
