"""A product's bits follow from its row and column, not from what is multiplied beside them."""

import numpy as np
import pytest

from flashsmith.emulator.machine.matrix_products import exact_product

ROWS, COLUMNS = 192, 256


def rounded(left, right):
    return exact_product(left, right).astype(np.float32)


@pytest.mark.parametrize("depth", [16, 48, 128])
def test_a_part_of_a_product_has_the_bits_of_the_whole(depth):
    rng = np.random.default_rng(depth)
    left = rng.standard_normal((ROWS, depth)).astype(np.float16).astype(np.float64)
    right = rng.standard_normal((depth, COLUMNS)).astype(np.float16).astype(np.float64)
    # Halves that nearly cancel: what is left of a sum is as small as an error of rounding in it.
    right[depth // 2 :] = -right[: depth // 2]
    left[:, depth // 2 :] = left[:, : depth // 2]
    left[:, -1] += 2.0**-10
    whole = rounded(left, right)
    for rows in (1, 2, 7, 16, 64, 100):
        for columns in (1, 8, 13, 64, 96, 128):
            part = rounded(left[:rows], right[:, :columns])
            assert part.tobytes() == whole[:rows, :columns].tobytes()
    assert rounded(right.T, left.T).T.tobytes() == whole.tobytes()
    assert rounded(left.reshape(-1, 16, depth), right).tobytes() == whole.tobytes()
