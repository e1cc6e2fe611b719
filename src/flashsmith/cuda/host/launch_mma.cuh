// How a kernel of the mma.sync family starts: the mirror of runtime/launch/mma.py.
#pragma once

#include "flashsmith/sm80/config.cuh"
#include "forward_kernel.cuh"

namespace flashsmith::host {

template <int kKernels>
cudaError_t launch(const FlashForwardKernelConfig& config,
                   const CompiledTraits (&kernels)[kKernels], const ForwardCall& call,
                   cudaStream_t stream) {
    const ForwardArgs& args = call.args;
    const i64 tiles = (static_cast<i64>(args.q_len) + config.B_r - 1) / config.B_r;
    const i64 blocks = tiles * args.heads * args.batch;
    if (blocks > 0x7fffffff) return cudaErrorInvalidConfiguration;  // the largest grid along x
    const Geometry geometry{.grid = dim3(static_cast<u32>(blocks)),
                            .block = dim3(static_cast<u32>(config.threads())),
                            .smem_bytes = static_cast<size_t>(config.smem_bytes())};
    const ForwardTraits needs = needed_traits(call, config.B_r, config.B_c, config.d_head);
    return start(kernels, needs, geometry, call, stream);
}

}  // namespace flashsmith::host
