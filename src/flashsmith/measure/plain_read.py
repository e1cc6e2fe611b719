"""A kernel that reads memory and computes nothing: what memory gives under the same protocol."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager

from flashsmith.compile.compiler import compile_text
from flashsmith.kernels.launch import LaunchGeometry
from flashsmith.measure.interleaved import Contender
from flashsmith.runtime.cuda.device import CudaDevice

READ = "plain read"
CHUNK_BYTES = 16  # of one load
_THREADS, _CTAS = 256, 16  # ctas an SM
_SOURCE = """
extern "C" __global__ void __launch_bounds__(256) read_all(
    const uint4* src, unsigned long long count, unsigned* dst) {
    const unsigned long long step = 1ull * gridDim.x * blockDim.x;
    unsigned sum = 0;
    unsigned long long i = 1ull * blockIdx.x * blockDim.x + threadIdx.x;
    for (; i + 7 * step < count; i += 8 * step) {
        uint4 x[8];
        #pragma unroll
        for (int j = 0; j < 8; ++j) {
            asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                : "=r"(x[j].x), "=r"(x[j].y), "=r"(x[j].z), "=r"(x[j].w) : "l"(src + i + j * step));
        }
        #pragma unroll
        for (int j = 0; j < 8; ++j) sum ^= x[j].x ^ x[j].y ^ x[j].z ^ x[j].w;
    }
    for (; i < count; i += step) sum ^= src[i].x ^ src[i].y ^ src[i].z ^ src[i].w;
    if (sum == 0x12345678u) *dst = sum;
}
"""


@contextmanager
def plain_read(device: CudaDevice, address: int, n_bytes: int) -> Iterator[Contender]:
    """Reads so many bytes once, from every SM and 16 at a time."""
    kernel = compile_text(_SOURCE, "read_all", device.arch)
    sink = device.allocate(4)
    try:
        words = (address, n_bytes // CHUNK_BYTES, sink)
        params = tuple(struct.pack("<Q", word) for word in words)
        geometry = LaunchGeometry((device.sm_count * _CTAS, 1, 1), _THREADS, 0)
        yield Contender(READ, device.prepare(kernel, geometry)(params))
    finally:
        device.free(sink)
