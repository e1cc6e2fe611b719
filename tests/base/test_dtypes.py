"""Element types: bits and numbers, against ml_dtypes."""

import numpy as np
import pytest

from flashsmith.base.dtypes import DType, from_bits, to_bits

ml_dtypes = pytest.importorskip("ml_dtypes")


def _numbers():
    rng = np.random.default_rng(0)
    special = [0.0, -0.0, 1.0, np.inf, -np.inf, 65504.0, 70000.0, 1e-8, 3.4e38, 1.00390625]
    wide = rng.normal(size=4096) * np.exp(rng.uniform(-40, 40, size=4096))
    return np.concatenate([np.array(special), wide]).astype(np.float32)


@pytest.mark.parametrize(
    ("dtype", "theirs"), [(DType.FP16, np.float16), (DType.BF16, ml_dtypes.bfloat16)]
)
def test_numbers_round_to_the_nearest_even_bits(dtype, theirs):
    with np.errstate(over="ignore"):
        expected = _numbers().astype(theirs).view(np.uint16)
    assert (to_bits(_numbers(), dtype) == expected).all()


@pytest.mark.parametrize(
    ("dtype", "theirs"), [(DType.FP16, np.float16), (DType.BF16, ml_dtypes.bfloat16)]
)
def test_every_bit_pattern_is_the_number_it_stands_for(dtype, theirs):
    bits = np.arange(1 << 16, dtype=np.uint16)
    expected = bits.view(theirs).astype(np.float32)
    assert np.array_equal(from_bits(bits, dtype), expected, equal_nan=True)


@pytest.mark.parametrize("dtype", DType)
def test_not_a_number_stays_one(dtype):
    assert np.isnan(from_bits(to_bits(np.array([np.nan]), dtype), dtype)).all()


def test_an_array_librarys_name_of_a_type_is_understood():
    assert DType.of(np.dtype(np.float16)) is DType.FP16
    assert DType.of(np.dtype(ml_dtypes.bfloat16)) is DType.BF16
    assert DType.of("torch.bfloat16") is DType.BF16
    assert DType.of(np.dtype(np.float32)) is None


def test_the_names_of_the_original_configuration_module_are_there():
    from flashsmith import config

    assert config.DType is DType
    assert all(hasattr(config, name) for name in config.__all__)
