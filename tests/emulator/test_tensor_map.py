"""Tensor maps: what they hold, what they refuse, and which element of a box lies where."""

import itertools

import numpy as np
import pytest

from flashsmith.base.errors import ArgumentError
from flashsmith.emulator.copies.tensor_map import (
    box_rows,
    decode_tensor_map,
    encode_tensor_map,
    row_elements,
)


def test_decode_undoes_encode():
    raw = encode_tensor_map(0x4000, 2, (64, 333, 3), (384, 128 * 1024), (64, 80, 1), 128, "f16")
    tensor = decode_tensor_map(raw)
    assert len(raw) == 128
    assert (tensor.address, tensor.dims, tensor.box) == (0x4000, (64, 333, 3), (64, 80, 1))
    assert tensor.strides_bytes == (2, 384, 128 * 1024)
    assert (tensor.swizzle_bytes, tensor.element_type) == (128, "f16")
    assert (tensor.row_bytes, tensor.rows, tensor.box_bytes) == (128, 80, 10240)


def test_other_bytes_are_no_tensor_map():
    assert decode_tensor_map(bytes(128)) is None
    assert decode_tensor_map(bytes(64)) is None


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"address": 0x4008}, "multiple of 16"),
        ({"dims": (64, 0)}, "each lies in 1"),
        ({"strides_bytes": (120,)}, "multiple of 16 bytes"),
        ({"strides_bytes": ()}, "one stride fewer"),
        ({"box": (64, 257)}, "each extent lies in 1 .. 256"),
        ({"box": (128, 8)}, "at most the swizzle"),
        ({"box": (4, 8)}, "multiples of 16 bytes"),
        ({"swizzle_bytes": 16}, "swizzle 16"),
        ({"element_bytes": 3}, "take 1, 2, 4 or 8 bytes"),
    ],
)
def test_what_the_driver_refuses_is_refused(change, says):
    good = {
        "address": 0x4000,
        "element_bytes": 2,
        "dims": (64, 100),
        "strides_bytes": (128,),
        "box": (64, 8),
        "swizzle_bytes": 128,
    }
    encode_tensor_map(**good)
    with pytest.raises(ArgumentError, match=says):
        encode_tensor_map(**{**good, **change})


@pytest.mark.parametrize("rank", [1, 2, 3, 4, 5])
def test_box_rows_are_the_elements_of_the_box_in_order(rank):
    dims = (24, 5, 3, 4, 2)[:rank]
    strides = (64, 64 * 7, 64 * 7 * 3, 64 * 7 * 3 * 5)[: rank - 1]
    box = (16, 3, 2, 3, 2)[:rank]
    tensor = decode_tensor_map(encode_tensor_map(0x1000, 2, dims, strides, box, 0))
    start = np.array([[12, -1, 2, -2, 1][:rank], [-8, 3, 0, 2, -1][:rank]], np.int64)
    rows, inside = box_rows(tensor, start)
    elements = row_elements(tensor, start)
    for transfer in range(2):
        corners = itertools.product(*(range(extent) for extent in reversed(box[1:])))
        for row, offsets in enumerate(corners):
            at = start[transfer, 1:] + np.array(offsets[::-1], np.int64)
            assert inside[transfer, row] == all(
                0 <= c < d for c, d in zip(at, dims[1:], strict=True)
            )
            address = 0x1000 + 2 * start[transfer, 0] + int(sum(at * np.array(strides, np.int64)))
            assert rows[transfer, row] == address
        columns = start[transfer, 0] + np.arange(16)
        assert (elements[transfer] == ((columns >= 0) & (columns < 24))).all()
