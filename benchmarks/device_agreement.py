"""How far apart two devices are on the same kernel: the emulator is only as good as it agrees."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flashsmith.base.dtypes import DType, from_bits
from flashsmith.check.cases import Case, inputs_of
from flashsmith.check.placement import fill_buffers, locations_of
from flashsmith.check.verdict import run_case
from flashsmith.kernels.kernel import KernelConfig
from flashsmith.runtime.device import Device

_MANTISSA_BITS = {DType.FP16: 10, DType.BF16: 7}


def output_of(device: Device, config: KernelConfig, case: Case) -> NDArray[np.uint16]:
    """O as 16-bit patterns, indexed (batch, row, head, d)."""
    locations = locations_of(case)
    after = run_case(
        device, config, case, locations, fill_buffers(case, locations, inputs_of(case))
    )
    return np.ascontiguousarray(locations["o"].view(after["o"]))


def ulps_apart(first: NDArray[np.uint16], second: NDArray[np.uint16], dtype: DType) -> float:
    """The largest difference, in units of the last place of the row's largest output."""
    a, b = (from_bits(bits, dtype).astype(np.float64) for bits in (first, second))
    largest = np.maximum(np.abs(a), np.abs(b)).max(axis=-1, keepdims=True)
    _, exponent = np.frexp(largest)  # largest is in [2^(exponent - 1), 2^exponent)
    ulp = np.ldexp(1.0, exponent - 1 - _MANTISSA_BITS[dtype])
    different = first != second
    apart = np.where(different, np.abs(a - b), 0.0) / np.where(largest == 0, 1.0, ulp)
    return float(np.where(np.isnan(apart), np.inf, apart).max(initial=0.0))
