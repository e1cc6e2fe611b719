"""Swizzles and wgmma descriptors: every element once, where the ISA's figures put it."""

import numpy as np
import pytest

from flashsmith.emulator.copies.smem_layout import MatrixDescriptor, operand_chunks, swizzled


@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
def test_a_swizzle_is_a_bijection_inside_each_kilobyte(swizzle):
    address = np.arange(4096)
    moved = swizzled(address, swizzle)
    assert sorted(moved) == address.tolist()
    assert (moved // 1024 == address // 1024).all()


def test_the_128_byte_swizzle_xors_the_chunk_with_the_row():
    assert swizzled(3 * 128 + 5 * 16 + 2, 128) == 3 * 128 + (5 ^ 3) * 16 + 2


def test_narrow_swizzles_use_fewer_bits_of_the_128_byte_row():
    # 64-byte rows: rows 2 and 3 share bits 7 and up; 32-byte rows: four rows do.
    assert swizzled(2 * 64 + 16, 64) == 2 * 64 + (1 ^ 1) * 16
    assert swizzled(4 * 32 + 0, 32) == 4 * 32 + 16
    assert swizzled(3 * 32 + 0, 32) == 3 * 32


@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
def test_decode_undoes_encode(swizzle):
    descriptor = MatrixDescriptor(0x8400, 16 * 77, 1024, 0, swizzle)
    assert MatrixDescriptor.decode(descriptor.encode()) == descriptor


@pytest.mark.parametrize("swizzle", [32, 64, 128])
def test_a_k_major_operand_is_the_rows_of_a_swizzled_tile(swizzle):
    descriptor = MatrixDescriptor(0x1000, 16, 8 * swizzle, 0, swizzle)
    row = np.arange(64)
    plain = 0x1000 + row[:, None] * swizzle + np.arange(2) * 16
    chunks = operand_chunks(descriptor.encode(), 64, mn_major=False)
    assert (chunks == swizzled(plain, swizzle)).all()


def test_a_k_step_inside_the_128_byte_row_only_adds_to_the_start():
    descriptor = MatrixDescriptor(0x1000 + 32, 16, 1024, 0, 128)
    row = np.arange(24)
    plain = 0x1000 + row[:, None] * 128 + 32 + np.arange(2) * 16
    assert (operand_chunks(descriptor.encode(), 24, mn_major=False) == swizzled(plain, 128)).all()


def test_a_plain_k_major_operand_is_core_matrices_of_eight_chunks():
    chunks = operand_chunks(MatrixDescriptor(0, 128, 256, 0, 0).encode(), 16, mn_major=False)
    assert chunks[0].tolist() == [0, 128]
    assert chunks[1].tolist() == [16, 144]
    assert chunks[8].tolist() == [256, 384]


@pytest.mark.parametrize("swizzle", [32, 64, 128])
def test_an_mn_major_operand_spans_panels_by_the_leading_offset(swizzle):
    rows, wide = 48, swizzle // 2  # k rows of the tile, columns of a panel
    panel = rows * swizzle
    descriptor = MatrixDescriptor(0x2000 + 16 * swizzle, panel, 8 * swizzle, 0, swizzle)
    chunks = operand_chunks(descriptor.encode(), 2 * wide, mn_major=True)
    k, chunk = np.arange(16)[:, None], np.arange(2 * wide // 8)[None, :]
    column = chunk * 8
    plain = 0x2000 + column // wide * panel + (16 + k) * swizzle + column % wide * 2
    assert (chunks == swizzled(plain, swizzle)).all()


def test_a_plain_mn_major_operand_swaps_the_two_offsets():
    chunks = operand_chunks(MatrixDescriptor(0, 512, 128, 0, 0).encode(), 32, mn_major=True)
    assert chunks[0].tolist() == [0, 128, 256, 384]
    assert chunks[:, 0].tolist() == [16 * k for k in range(8)] + [512 + 16 * k for k in range(8)]


def test_a_part_of_the_rows_is_a_part_of_the_chunks():
    bits = MatrixDescriptor(0x400, 4096, 1024, 0, 128).encode()
    for mn_major, axis in ((False, 0), (True, 1)):
        whole = operand_chunks(bits, 64, mn_major=mn_major)
        part = operand_chunks(bits, 16, mn_major=mn_major, first=32)
        low, high = (32, 48) if axis == 0 else (4, 6)
        assert (part == whole.take(range(low, high), axis)).all()
