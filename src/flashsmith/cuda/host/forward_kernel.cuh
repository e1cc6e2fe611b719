// What the host knows of one configuration's kernels: which problem each computes, how it starts.
#pragma once

#include <cuda_runtime.h>

#include "flashsmith/attention/needs.cuh"
#include "flashsmith/sm80/args.cuh"

namespace flashsmith::host {

// One call, before a kernel is chosen.
struct ForwardCall {
    ForwardArgs args;
    bool causal;
};

// Starts the kernel of one configuration that computes `call`.
using forward_kernel_fn = cudaError_t (*)(const ForwardCall& call, cudaStream_t stream);

struct CompiledTraits {
    ForwardTraits traits;
    const void* kernel;
};

struct Geometry {
    dim3 grid;
    dim3 block;
    size_t smem_bytes;
};

// The facts of a problem that a kernel for tiles of `tile_q` x `tile_k` must be compiled for.
inline ForwardTraits needed_traits(const ForwardCall& call, int tile_q, int tile_k, int d_head) {
    const ForwardArgs& args = call.args;
    return ForwardTraits{.causal = call.causal,
                         .ragged_q = args.q_len % tile_q != 0,
                         .ragged_k = args.k_len % tile_k != 0,
                         .narrow_d = args.d_head < d_head,
                         .lse = args.lse != nullptr};
}

// A kernel with more traits computes a problem with fewer: its predicates are then always true,
// its diagonal lies right of the last key, and its LSE address is null.
inline bool covers(const ForwardTraits& has, const ForwardTraits& needs) {
    // Bound by number: a trait that is added and not compared here does not compile.
    const auto [causal, ragged_q, ragged_k, narrow_d, lse] = needs;
    return has.causal >= causal && has.ragged_q >= ragged_q && has.ragged_k >= ragged_k &&
           has.narrow_d >= narrow_d && has.lse >= lse;
}

// Starts the first of `kernels` that covers `needs`; the last one covers everything.
template <int kKernels>
cudaError_t start(const CompiledTraits (&kernels)[kKernels], const ForwardTraits& needs,
                  const Geometry& geometry, const ForwardCall& call, cudaStream_t stream) {
    int chosen = 0;
    while (chosen + 1 < kKernels && !covers(kernels[chosen].traits, needs)) ++chosen;
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
