"""Global memory: buffers, guard zones, growth."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashsmith.base.errors import ArgumentError, EmulationError
from flashsmith.emulator.memory import GlobalMemory


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
