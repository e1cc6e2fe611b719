"""Global memory: buffers, guard zones, growth."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashsmith.base.errors import ArgumentError, EmulationError
from flashsmith.emulator.memory import FAR_STRIDE, GlobalMemory


def test_buffers_are_aligned_zeroed_and_apart():
    memory = GlobalMemory()
    addresses = [memory.allocate(n) for n in (1, 300, 4096)]
    assert all(address % 256 == 0 for address in addresses)
    assert not memory.read(addresses[1], 300).any()
    assert addresses[1] - addresses[0] >= 4096


def test_what_is_written_is_read():
    memory = GlobalMemory()
    address = memory.allocate(16)
    memory.write(address + 4, np.arange(3, dtype=np.uint32))
    assert memory.read(address, 16).view(np.uint32).tolist() == [0, 0, 1, 2]


@pytest.mark.parametrize("offset", [-1, 1, 16, 300])
def test_the_host_stays_in_bounds_too(offset):
    memory = GlobalMemory()
    address = memory.allocate(16)
    with pytest.raises(EmulationError, match=r"16 bytes lie outside"):
        memory.read(address + offset, 16)


def test_freed_memory_is_gone_and_used_again():
    memory = GlobalMemory()
    address = memory.allocate(64)
    memory.write(address, np.ones(64, np.uint8))
    memory.free(address)
    with pytest.raises(EmulationError, match="outside every buffer"):
        memory.read(address, 64)
    with pytest.raises(ArgumentError, match="no buffer begins"):
        memory.free(address)
    again = memory.allocate(64)
    assert again == address
    assert not memory.read(again, 64).any()


def test_freed_places_join_and_serve_buffers_of_other_sizes():
    memory = GlobalMemory()
    first, second, last = (memory.allocate(10_000) for _ in range(3))
    memory.free(first)
    memory.free(second)
    assert memory.allocate(15_000) == first
    assert memory.allocate(100) < last
    size = memory.u8.size
    for n_bytes in range(1_000, 900_000, 7_000):
        memory.free(memory.allocate(n_bytes))
    assert memory.u8.size <= 2 * size


def test_growing_keeps_addresses_and_contents():
    memory = GlobalMemory()
    first = memory.allocate(1000)
    memory.write(first, np.full(1000, 7, np.uint8))
    memory.allocate(64 << 20)
    assert (memory.read(first, 1000) == 7).all()


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.integers(1, 5000), min_size=1, max_size=8),
    st.lists(st.integers(-600, 60000), min_size=1, max_size=50),
    st.sampled_from([1, 4, 16]),
)
def test_outside_agrees_with_the_definition(sizes, offsets, width):
    memory = GlobalMemory()
    buffers = [(memory.allocate(n), n) for n in sizes]
    base = buffers[0][0]
    addresses = np.array([base + offset for offset in offsets], np.uint64)
    inside = [any(s <= int(a) and int(a) + width <= s + n for s, n in buffers) for a in addresses]
    assert memory.outside(addresses, width).tolist() == [not x for x in inside]
    for address, expected in zip(addresses, inside, strict=True):
        assert memory.holds(int(address), int(address) + width) is expected


def test_sparse_buffers_lie_far_apart_and_take_memory_for_their_runs_only():
    memory = GlobalMemory()
    near = memory.allocate(64)
    strides = (100 * FAR_STRIDE, FAR_STRIDE)
    first = memory.allocate_sparse(512, counts=(2, 50), strides_bytes=strides)
    second = memory.allocate_sparse(512)
    assert min(first - near, second - first) > 2**32
    assert second - first > 149 * FAR_STRIDE
    assert memory.u8.size <= 2 << 20
    last = first + 149 * FAR_STRIDE
    memory.write(last, np.arange(128, dtype=np.uint32))
    assert not memory.read(first, 512).any()
    assert memory.read(last + 256, 8).view(np.uint32).tolist() == [64, 65]


@pytest.mark.parametrize("offset", [512, FAR_STRIDE - 1, FAR_STRIDE + 1, 2 * FAR_STRIDE, -1])
def test_between_the_runs_there_is_nothing(offset):
    memory = GlobalMemory()
    address = memory.allocate_sparse(512, counts=(2,), strides_bytes=(FAR_STRIDE,))
    with pytest.raises(EmulationError, match="512 bytes lie outside"):
        memory.read(address + offset, 512)


def test_runs_keep_the_alignment_of_their_addresses():
    memory = GlobalMemory()
    address = memory.allocate_sparse(48, counts=(5,), strides_bytes=(FAR_STRIDE + 16,))
    at = np.array([address + k * (FAR_STRIDE + 16) for k in range(5)], np.int64)
    assert (memory.offsets(at) % 256 == at % 256).all()
    assert not memory.outside(at.view(np.uint64), 48).any()
    assert memory.outside(at.view(np.uint64) + np.uint64(16), 48).all()


def test_sparse_buffers_are_freed_whole():
    memory = GlobalMemory()
    address = memory.allocate_sparse(100, counts=(3,), strides_bytes=(FAR_STRIDE,))
    beside = memory.allocate_sparse(100)
    memory.free(address)
    assert memory.is_sparse
    for run in range(3):
        assert not memory.holds(address + run * FAR_STRIDE, address + run * FAR_STRIDE + 1)
    memory.free(beside)
    assert not memory.is_sparse


@pytest.mark.parametrize(
    ("n_bytes", "counts", "strides", "words"),
    [
        (0, (), (), "a byte or more"),
        (16, (2,), (), "every count of 1 or more has a stride"),
        (16, (0,), (64,), "every count of 1 or more has a stride"),
        (16, (3,), (8,), "over each other"),
        (16, (3,), (-64,), "before the first"),
        (16, (2,), (1 << 47,), "take smaller strides"),
    ],
)
def test_runs_that_cannot_be_are_refused(n_bytes, counts, strides, words):
    with pytest.raises(ArgumentError, match=words):
        GlobalMemory().allocate_sparse(n_bytes, counts=counts, strides_bytes=strides)
