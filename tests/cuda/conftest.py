"""Device code of a few lines, run by one block on every device there is."""

import numpy as np
import pytest

from flashsmith.compile.compiler import compile_text
from flashsmith.compile.unit import structs
from flashsmith.kernels.launch import LaunchGeometry

UNIT = """\
{includes}
using namespace flashsmith;
extern "C" __global__ void lines(u64 in, u64 out) {{
    extern __shared__ __align__(1024) unsigned char smem[];
    [[maybe_unused]] const SmemAddr room{{static_cast<u32>(__cvta_generic_to_shared(smem))}};
    [[maybe_unused]] const u32 thread = threadIdx.x;
{body}
}}
"""


@pytest.fixture
def run_lines(device):
    """Runs `body` with `in` and `out` as addresses; returns the bytes at `out` as `dtype`."""

    def run(
        body, given, *, headers, out_bytes, dtype, threads=32, blocks=1, smem_bytes=0, kernel=None
    ):
        includes = structs(kernel) if kernel else ""
        includes += "\n".join(f'#include "flashsmith/{header}"' for header in headers)
        source = UNIT.format(includes=includes, body=body)
        kernel = compile_text(source, "lines", device.arch)
        given = np.ascontiguousarray(given)
        addresses = [device.allocate(given.nbytes), device.allocate(out_bytes)]
        device.upload(addresses[0], given)
        device.upload(addresses[1], np.full(out_bytes, 0xA5, np.uint8))
        geometry = LaunchGeometry((blocks, 1, 1), threads, smem_bytes)
        device.launch(kernel, geometry, tuple(np.uint64(a).tobytes() for a in addresses))
        result = device.download(addresses[1], out_bytes).view(dtype)
        for address in addresses:
            device.free(address)
        return result

    return run
