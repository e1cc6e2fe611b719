"""Tensor maps of the hardware, encoded by the driver."""

from __future__ import annotations

import ctypes
from ctypes import c_uint32, c_uint64

from flashsmith.base.errors import ArgumentError
from flashsmith.kernels.arguments import TensorMapSpec
from flashsmith.runtime.cuda.driver import Driver

MAP_BYTES = 128
_ALIGNMENT = 64  # of the encoded map, by cuTensorMapEncodeTiled
# CUtensorMapDataType, CUtensorMapSwizzle, CUtensorMapL2promotion
_FLOAT16, _BFLOAT16, _FLOAT32, _UINT8 = 6, 9, 7, 0
_SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}
_PROMOTIONS = {0: 0, 64: 1, 128: 2, 256: 3}
_INTERLEAVE_NONE = 0
_FILL_ZERO = 0


def encode_tensor_map(driver: Driver, spec: TensorMapSpec) -> bytes:
    """The 128 bytes of the map; what the driver would refuse without a word is refused by name."""
    require_encodable(spec)
    rank = len(spec.dims)
    room = ctypes.create_string_buffer(MAP_BYTES + _ALIGNMENT)
    address = -(-ctypes.addressof(room) // _ALIGNMENT) * _ALIGNMENT
    driver.call(
        "cuTensorMapEncodeTiled",
        address,
        _data_type(spec),
        rank,
        spec.address,
        (c_uint64 * rank)(*spec.dims),
        (c_uint64 * max(rank - 1, 1))(*spec.strides_bytes),
        (c_uint32 * rank)(*spec.box),
        (c_uint32 * rank)(*([1] * rank)),
        _INTERLEAVE_NONE,
        _SWIZZLES[spec.swizzle_bytes],
        _PROMOTIONS[spec.l2_promotion_bytes],
        _FILL_ZERO,
    )
    return ctypes.string_at(address, MAP_BYTES)


def require_encodable(spec: TensorMapSpec) -> None:
    """Raises `ArgumentError` for a map that the hardware has no encoding of."""
    rank = len(spec.dims)
    if not (1 <= rank <= 5 and len(spec.box) == rank and len(spec.strides_bytes) == rank - 1):
        raise ArgumentError(
            f"A tensor map has {rank} dimensions, {len(spec.box)} box extents and "
            f"{len(spec.strides_bytes)} strides; give n, n and n - 1 with n from 1 to 5."
        )
    if spec.address % 16 or any(stride % 16 for stride in spec.strides_bytes):
        raise ArgumentError(
            f"A tensor map has address {spec.address:#x} and strides {spec.strides_bytes} bytes; "
            f"all must be multiples of 16."
        )
    if any(not 1 <= extent <= 256 for extent in spec.box):
        raise ArgumentError(f"A tensor map's box is {spec.box}; extents are 1 to 256.")
    inner_bytes = spec.box[0] * spec.element_bytes
    if spec.swizzle_bytes and inner_bytes > spec.swizzle_bytes:
        raise ArgumentError(
            f"A tensor map's inner box is {inner_bytes} bytes; its {spec.swizzle_bytes}-byte "
            f"swizzle takes at most that."
        )


def _data_type(spec: TensorMapSpec) -> int:
    if spec.element_bytes == 2:
        return _BFLOAT16 if spec.is_bf16 else _FLOAT16
    if spec.element_bytes == 4:
        return _FLOAT32
    if spec.element_bytes == 1:
        return _UINT8
    raise ArgumentError(
        f"A tensor map's elements have {spec.element_bytes} bytes; 1, 2 and 4 can be encoded."
    )
