"""Devices: memory, parameters, geometry and shared memory mean the same on both."""

import struct
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from flashsmith.base.errors import ArgumentError, DeviceMissing, LaunchError, Unsupported
from flashsmith.compile.compiler import compile_text
from flashsmith.kernels.launch import LaunchGeometry
from flashsmith.runtime import devices
from flashsmith.runtime.cuda.device import CudaDevice

WHERE = """
extern "C" __global__ void where_am_i(unsigned* out, unsigned factor, unsigned offset) {
    unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    out[block * blockDim.x + threadIdx.x] = factor * (block * 1000 + threadIdx.x) + offset;
}
"""
REVERSE = """
extern __shared__ unsigned room[];
extern "C" __global__ void reverse(unsigned* data, unsigned last) {
    room[last - threadIdx.x] = data[threadIdx.x];
    __syncthreads();
    data[threadIdx.x] = room[last - 127 + threadIdx.x];
}
"""


def where_kernel(device):
    return compile_text(WHERE, "where_am_i", device.arch)


def packed(*values):
    return tuple(struct.pack("<Q" if i == 0 else "<I", value) for i, value in enumerate(values))


def test_a_launch_reaches_every_block_and_thread_with_its_parameters(device):
    grid, threads = (3, 5, 2), 64
    address = device.allocate(30 * threads * 4)
    device.launch(where_kernel(device), LaunchGeometry(grid, threads, 0), packed(address, 7, 11))
    got = device.download(address, 30 * threads * 4).view(np.uint32).reshape(30, threads)
    expected = 7 * (np.arange(30)[:, None] * 1000 + np.arange(threads)) + 11
    np.testing.assert_array_equal(got, expected)
    device.free(address)


def test_a_prepared_launch_takes_new_parameters_each_time(device):
    address = device.allocate(4 * 32)
    launch = device.prepare(where_kernel(device), LaunchGeometry((1, 1, 1), 32, 0))
    for factor in (1, 2, 3):
        launch(packed(address, factor, 0))(0)
        got = device.download(address, 4 * 32).view(np.uint32)
        np.testing.assert_array_equal(got, factor * np.arange(32))
    device.free(address)


def test_a_block_gets_more_shared_memory_than_the_default_48_kb(device):
    smem_bytes = 100 << 10
    address = device.allocate(4 * 128)
    device.upload(address, np.arange(128, dtype=np.uint32))
    kernel = compile_text(REVERSE, "reverse", device.arch)
    device.launch(
        kernel, LaunchGeometry((1, 1, 1), 128, smem_bytes), packed(address, smem_bytes // 4 - 1)
    )
    got = device.download(address, 4 * 128).view(np.uint32)
    np.testing.assert_array_equal(got, np.arange(128)[::-1])
    device.free(address)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32, np.float64])
def test_what_is_uploaded_is_downloaded(device, dtype):
    data = np.arange(77).astype(dtype)
    address = device.allocate(data.nbytes)
    assert address % 256 == 0
    device.upload(address, data)
    np.testing.assert_array_equal(device.download(address, data.nbytes).view(dtype), data)
    device.free(address)


def test_fill_sets_rows_and_leaves_what_is_between_them(device):
    address = device.allocate(4 * 30)
    device.upload(address, np.zeros(30, np.uint32))
    device.fill(address + 4, 0xABCD, 3, rows=4, pitch_bytes=4 * 7)
    got = device.download(address, 4 * 30).view(np.uint32)
    expected = np.zeros(30, np.uint32)
    for row in range(4):
        expected[1 + 7 * row : 4 + 7 * row] = 0xABCD
    np.testing.assert_array_equal(got, expected)
    device.free(address)


def test_a_workspace_is_zero_at_first_and_shared_by_launches_of_a_stream(device):
    address = device.workspace(64)
    assert not device.download(address, 64).any()
    assert device.workspace(8) == address
    larger = device.workspace(4096)
    assert not device.download(larger, 4096).any()


def test_scratch_is_kept_apart_from_the_workspace(device):
    address, workspace = device.scratch(4096), device.workspace(64)
    device.upload(address, np.full(4096, 0xFF, np.uint8))
    assert device.scratch(64) == address
    assert not device.download(workspace, 64).any()
    larger = device.scratch(1 << 16)
    device.upload(larger, np.full(1 << 16, 0xFF, np.uint8))
    assert not device.download(workspace, 64).any()


def test_the_stream_that_every_thread_has_of_its_own_has_a_workspace_a_thread(monkeypatch):
    gpu = CudaDevice.__new__(CudaDevice)  # no driver is needed for the book-keeping
    gpu._lock, gpu._workspaces = threading.Lock(), {}
    addresses = iter(range(256, 10**6, 256))
    monkeypatch.setattr(CudaDevice, "_zeroed", lambda self, n_bytes: next(addresses))
    monkeypatch.setattr(CudaDevice, "is_capturing", lambda self, stream: False)
    per_thread, ordinary = 2, 0x1000  # 2 is CU_STREAM_PER_THREAD, whichever thread asks
    first = gpu.workspace(64, per_thread), gpu.workspace(64, ordinary)
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(lambda: (gpu.workspace(64, per_thread), gpu.workspace(64, ordinary)))
    assert other.result()[0] != first[0]
    assert other.result()[1] == first[1]
    assert gpu.workspace(64, per_thread) == first[0]


def test_launches_of_one_capture_share_a_workspace_and_no_other_has_it(monkeypatch):
    gpu = CudaDevice.__new__(CudaDevice)
    gpu._lock, gpu._workspaces = threading.Lock(), {}
    addresses = iter(range(256, 10**6, 256))
    monkeypatch.setattr(CudaDevice, "_zeroed", lambda self, n_bytes: next(addresses))
    captures = {0x1000: 0, 0x2000: 7}
    monkeypatch.setattr(CudaDevice, "is_capturing", lambda self, stream: captures[stream] > 0)
    monkeypatch.setattr(CudaDevice, "_capture_of", lambda self, stream: captures[stream])
    ordinary, captured = gpu.workspace(64, 0x1000), gpu.workspace(64, 0x2000)
    assert ordinary != captured == gpu.workspace(64, 0x2000)
    captures[0x2000] = 8
    assert gpu.workspace(64, 0x2000) not in (ordinary, captured)


def test_the_first_use_from_several_threads_loads_one_kernel(device):
    kernel = where_kernel(device)
    addresses = [device.allocate(4 * 32) for _ in range(4)]
    failures = []

    def work(address, factor):
        try:
            device.launch(kernel, LaunchGeometry((1, 1, 1), 32, 0), packed(address, factor, 0))
        except Exception as error:  # noqa: BLE001 – shown below, in the test's own thread
            failures.append(error)

    threads = [
        threading.Thread(target=work, args=(address, factor))
        for factor, address in enumerate(addresses)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    for factor, address in enumerate(addresses):
        got = device.download(address, 4 * 32).view(np.uint32)
        np.testing.assert_array_equal(got, factor * np.arange(32))
        device.free(address)


def test_threads_share_a_device(device):
    """Each allocates, fills, launches and reads its own memory, as callers of an API do."""
    kernel = where_kernel(device)

    def work(factor):
        for step in range(4):
            room = device.allocate(factor << 20)  # other threads' memory may have to move for it
            address = device.allocate(4 * 32 * 64)
            device.upload(address, np.full(32 * 64, step, np.uint32))
            launch = device.prepare(kernel, LaunchGeometry((64, 1, 1), 32, 0))
            launch(packed(address, factor, 0))(0)
            got = device.download(address, 4 * 32 * 64).view(np.uint32).reshape(64, 32)
            device.free(address)
            device.free(room)
            np.testing.assert_array_equal(
                got, factor * (np.arange(64)[:, None] * 1000 + np.arange(32))
            )

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(1, 9)))


def test_a_device_is_asked_for_by_name(monkeypatch):
    monkeypatch.setenv("FLASHSMITH_DEVICE", "emulator")
    assert devices.default_device_name() == "emulator"
    assert devices.default_device() is devices.default_device("emulator")
    assert devices.open_device("emulator") is not devices.open_device("emulator")
    with pytest.raises(ArgumentError, match="device is 'tpu'; it must be 'cuda' or 'emulator'"):
        devices.open_device("tpu")


def test_cuda_without_a_gpu_is_said(monkeypatch):
    monkeypatch.setattr(
        "flashsmith.runtime.cuda.driver._found", ["libcuda.so.1 cannot be loaded"], raising=True
    )
    assert not devices.has_cuda()
    with pytest.raises(DeviceMissing, match=r"libcuda.so.1 cannot be loaded; use the emulator"):
        devices.open_device("cuda")


def test_the_emulator_runs_the_architecture_it_was_opened_for():
    device = devices.open_device("emulator")
    kernel = compile_text(WHERE, "where_am_i", "sm_80")
    with pytest.raises(Unsupported, match="compiled for sm_80; this emulator runs sm_90a"):
        device.launch(kernel, LaunchGeometry((1, 1, 1), 32, 0), packed(0, 0, 0))


@pytest.mark.gpu
def test_a_launch_on_a_stream_is_ordered_with_it():
    from flashsmith.measure.cuda_graph import Timer

    device = devices.default_device("cuda")
    address = device.allocate(4 * 32)
    with Timer(device) as timer:
        launch = device.prepare(where_kernel(device), LaunchGeometry((1, 1, 1), 32, 0))
        replay = timer.capture(launch(packed(address, 5, 0)))
        device.upload(address, np.zeros(32, np.uint32))
        assert timer.elapsed_us(replay) > 0
        timer.wait()
        got = device.download(address, 4 * 32).view(np.uint32)
    np.testing.assert_array_equal(got, 5 * np.arange(32))
    device.free(address)


@pytest.mark.gpu
def test_ptx_is_never_loaded():
    from dataclasses import replace

    device = devices.default_device("cuda")
    kernel = where_kernel(device)
    text = replace(kernel, cubin=kernel.ptx.encode(), key="ptx")
    with pytest.raises(LaunchError, match="PTX is not loaded"):
        device.launch(text, LaunchGeometry((1, 1, 1), 32, 0), packed(0, 0, 0))


@pytest.mark.gpu
def test_a_captured_launch_gets_a_workspace_of_its_own_and_no_fill_in_its_graph():
    from flashsmith.measure.cuda_graph import Timer

    device = devices.default_device("cuda")
    given = []

    def launch(stream):
        given.append(device.workspace(64, stream))
        device.fill(given[-1], 7, 1, stream=stream)
        assert device.workspace(64, stream) == given[-1]

    with Timer(device) as timer:
        outside = device.workspace(64, timer.stream)
        replay = timer.capture(launch)
        timer.capture(launch)
        assert len({outside, *given}) == 3
        assert not device.download(given[0], 64).any()
        replay(timer.stream)
        timer.wait()
        device.fill(given[0] + 4, 9, 1, stream=timer.stream)
        replay(timer.stream)
        timer.wait()
        words = device.download(given[0], 8).view(np.uint32)
    assert words.tolist() == [7, 9]  # the second replay zeroed nothing
