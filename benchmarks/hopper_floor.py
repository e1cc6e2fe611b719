"""Products alone: the wgmma of an attention kernel on its operands, with nothing else to do."""

from __future__ import annotations

import struct

import torch
from hopper_shapes import device

from flashsmith.compile.artefact import CompiledKernel
from flashsmith.compile.compiler import compile_text
from flashsmith.config.hopper import PANEL_ROW_BYTES, HopperForwardKernelConfig
from flashsmith.measure.interleaved import Contender
from flashsmith.runtime.device import LaunchGeometry

_NUMBERS = 1 << 22  # normal ones, then as many exponentials of such
_KERNEL = """
#include "flashsmith/ops/hopper_products.cuh"
#include "flashsmith/ptx/tma.cuh"
#include "flashsmith/ptx/warpgroup.cuh"

using namespace flashsmith;

constexpr HopperForwardKernelConfig kConfig = @CONFIG@;
constexpr int kBlock = kConfig.kv_bytes();  // two of K and two of V are used in turn
constexpr int kRows = kConfig.q_slot_bytes();
constexpr int kQ = kConfig.n_warpgroups * kRows;
using Products = HopperProducts<kConfig, false>;

extern "C" __global__ void __launch_bounds__(kConfig.threads(), 1)
products(const u32* numbers, float* out, int blocks) {
    extern __shared__ u32 raw[];
    const u32 start = static_cast<u32>(__cvta_generic_to_shared(raw));
    const u32 base = (start + 1023) & ~1023u;  // swizzled panels begin at multiples of 1024
    u32* smem = raw + (base - start) / 4;
    for (int i = threadIdx.x; i < (kQ + 4 * kBlock) / 4; i += blockDim.x) smem[i] = numbers[i];
    ptx::fence_proxy_async();
    __syncthreads();
    const int warpgroup = threadIdx.x / kWarpgroupThreads;
    if (warpgroup == kConfig.n_warpgroups) {
        ptx::setmaxnreg_dec<kConfig.producer_registers>();
        return;
    }
    ptx::setmaxnreg_inc<kConfig.consumer_registers>();
    const auto q = ptx::MatrixDescriptor::of(SmemAddr{base + warpgroup * kRows}, 64);
    Products::Scores<kConfig.B_c> s;
    Products::O o;
    Products::P p;
    for (float& x : o) x = 0.f;
    const u32* probabilities = numbers + @NUMBERS@ / 2 + warpgroup * 7777 + threadIdx.x;
    for (u32& x : p) x = *(probabilities += kWarpgroupThreads);
    _Pragma("unroll 1") for (int n = 0; n < blocks; ++n) {
        const u32 k = base + kQ + n % 2 * kBlock;
        const u32 panel = kConfig.B_c * kPanelRowBytes;
        Products::issue_qk<kConfig.B_c>(s, q, ptx::MatrixDescriptor::of(SmemAddr{k}, 64));
        Products::issue_pv<kConfig.B_c>(
            o, p, ptx::MatrixDescriptor::of(SmemAddr{k + 2 * kBlock}, panel), true);
        ptx::wgmma_wait<1>();
    }
    ptx::wgmma_wait<0>();
    ptx::fence_registers(s);
    ptx::fence_registers(o);
    float sum = 0.f;
    for (float x : s) sum += x;
    for (float x : o) sum += x;
    out[blockIdx.x * kConfig.threads() + threadIdx.x] = sum;
}
"""


def products_kernel(config: HopperForwardKernelConfig) -> CompiledKernel:
    """The loop with a configuration's tile, warpgroups and type."""
    text = _KERNEL.replace("@CONFIG@", config.to_cpp_struct()).replace("@NUMBERS@", str(_NUMBERS))
    return compile_text(text, "products", "sm_90a")


def products_alone(name: str, config: HopperForwardKernelConfig, flops: float) -> Contender:
    """As many products on random numbers as `flops` are, on every SM at once."""
    gpu = device()
    a_block = 4 * config.tile_q * config.tile_k * config.d_head
    blocks = round(flops / a_block / gpu.sm_count)
    dtype = torch.float16 if config.dtype.name == "FP16" else torch.bfloat16
    normal = torch.randn(_NUMBERS, device="cuda")
    numbers = torch.cat([normal, (normal - 4).exp()]).to(dtype)
    out = torch.empty(gpu.sm_count * config.threads, device="cuda")
    rows = config.tile_q + 4 * config.tile_k
    smem_bytes = rows * config.panels * PANEL_ROW_BYTES + 1024
    geometry = LaunchGeometry((gpu.sm_count, 1, 1), config.threads, smem_bytes)
    launch = gpu.prepare(products_kernel(config), geometry)
    torch.cuda.synchronize()
    given = (numbers.data_ptr(), out.data_ptr())
    params = (*(struct.pack("<Q", x) for x in given), struct.pack("<i", blocks))
    keep = (numbers, out)

    def run(stream: int) -> None:
        assert keep
        launch(params, stream)

    return Contender(name, run)
