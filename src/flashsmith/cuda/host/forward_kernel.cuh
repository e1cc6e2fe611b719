// What the host knows of one configuration's kernels: which problem each computes, how it starts.
#pragma once

#include <cuda_runtime.h>

#include "structs.cuh"

namespace flashsmith::host {

// One call, before a kernel is chosen.
struct ForwardCall {
    ForwardArgs args;
    bool causal;
};

// Starts the kernel of one configuration that computes `call`.
using forward_kernel_fn = cudaError_t (*)(const ForwardCall& call, cudaStream_t stream);

struct CompiledNeeds {
    Needs needs;
    const void* kernel;
};

struct Geometry {
    dim3 grid;
    dim3 block;
    size_t smem_bytes;
};

// What a kernel for tiles of `tile_q` x `tile_k` must be compiled for to compute `call`.
inline Needs needs_of(const ForwardCall& call, int tile_q, int tile_k, int d_head) {
    const ForwardArgs& args = call.args;
    Needs needs = Needs::none();
    needs.causal = call.causal;
    needs.ragged_q = args.q_len % tile_q != 0;
    needs.ragged_k = args.k_len % tile_k != 0;
    needs.narrow_d = args.d_head < d_head;
    needs.lse = args.lse != nullptr;
    return needs;
}

// Starts the first of `kernels` that covers `needs`; the last one covers everything.
template <int kKernels>
cudaError_t start(const CompiledNeeds (&kernels)[kKernels], const Needs& needs,
                  const Geometry& geometry, const ForwardCall& call, cudaStream_t stream) {
    int chosen = 0;
    while (chosen + 1 < kKernels && !kernels[chosen].needs.covers(needs)) ++chosen;
    const void* kernel = kernels[chosen].kernel;
    ForwardArgs args = call.args;
    if (!call.causal) args.diagonal = args.k_len;
    // Above 48 KiB a kernel must ask; asking again is free of side effects.
    cudaError_t result = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                              static_cast<int>(geometry.smem_bytes));
    if (result != cudaSuccess) return result;
    void* parameters[] = {&args};
    return cudaLaunchKernel(kernel, geometry.grid, geometry.block, parameters, geometry.smem_bytes,
                            stream);
}

}  // namespace flashsmith::host
