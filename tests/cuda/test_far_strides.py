"""Kernels on tensors whose rows lie more than 2**32 bytes apart: no offset is cut to 32 bits."""

import sys
from pathlib import Path

import numpy as np
import pytest

from flashsmith.base.dtypes import from_bits
from flashsmith.check.cases import Case, inputs_of
from flashsmith.check.tolerance import distance, expectation_of
from flashsmith.emulator.memory import FAR_STRIDE
from flashsmith.kernels import parse_config
from flashsmith.kernels.arguments import TensorArg
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.signature import FORWARD, signature_of
from flashsmith.runtime.emulated import EmulatedDevice
from flashsmith.runtime.run import prepare

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from plant_faults import FAMILIES

BATCH, HEADS, ROWS, KEYS, D_HEAD = 2, 3, 41, 77, 64


def placed(device, shape):
    """A tensor (batch, rows, heads, d_head) of 16-bit elements whose rows all lie far apart.

    Rows have the largest stride: tensor maps take those below 2**40 bytes.
    """
    batch, rows, heads, d_head = shape
    strides = (FAR_STRIDE, heads * batch * FAR_STRIDE, batch * FAR_STRIDE)
    address = device.memory.allocate_sparse(
        2 * d_head, counts=(batch, rows, heads), strides_bytes=strides
    )
    return TensorArg(address, *(stride // 2 for stride in strides))


def row_addresses(arg, shape):
    for at in np.ndindex(*shape[:3]):
        strides = (arg.batch_stride, arg.seq_stride, arg.head_stride)
        yield at, arg.address + 2 * sum(n * s for n, s in zip(at, strides, strict=True))


def near(device, array):
    address = device.allocate(array.nbytes)
    device.upload(address, array)
    return TensorArg(address)


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_that_lie_far_apart_are_read_and_written(family):
    config, device = parse_config(FAMILIES[family]), EmulatedDevice()
    is_forward = FORWARD.operation == config.OPERATION
    problem = AttentionProblem(
        *(BATCH, HEADS, 1, ROWS, KEYS, D_HEAD, config.dtype),
        causal=True,
        operation=config.OPERATION,
        lse=is_forward,
    )
    case = Case("far", problem)
    bits, call = inputs_of(case), {}
    for role in signature_of(problem).of(problem):
        shape = role.rows_first(problem)
        if not role.is_rows:
            words = bits.get(role.name, np.zeros(shape, np.uint32))
            call[role.name] = near(device, np.ascontiguousarray(words))
            continue
        call[role.name] = placed(device, shape)
        for at, address in row_addresses(call[role.name], shape) if role.name in bits else ():
            device.upload(address, np.ascontiguousarray(bits[role.name][at]))
    prepare(device, config, problem)(call)
    for name, expected in expectation_of(case).items():
        if name == "lse":
            continue
        found = np.empty(expected.truth.shape, np.uint16)
        for at, address in row_addresses(call[name], found.shape):
            found[at] = device.download(address, 2 * D_HEAD).view(np.uint16)
        furthest = distance(name, expected, from_bits(found, config.dtype).astype(np.float32))
        assert furthest.ok, furthest
