// How a kernel of the forward kernel on mma.sync starts: as kernels/sm80_forward/plan.py does it.
#pragma once

#include "forward_kernel.cuh"

namespace flashsmith::host {

template <int kKernels>
cudaError_t launch(const FlashForwardKernelConfig& config, const CompiledNeeds (&kernels)[kKernels],
                   const ForwardCall& call, cudaStream_t stream) {
    const ForwardArgs& args = call.args;
    const i64 tiles = (static_cast<i64>(args.q_len) + config.B_r - 1) / config.B_r;
    const i64 blocks = tiles * args.heads * args.batch;
    if (blocks > 0x7fffffff) return cudaErrorInvalidConfiguration;  // the largest grid along x
    const int slices = (args.d_head + config.v_cols() - 1) / config.v_cols();
    const Geometry geometry{.grid = dim3(static_cast<u32>(blocks), static_cast<u32>(slices)),
                            .block = dim3(static_cast<u32>(config.threads())),
                            .smem_bytes = static_cast<size_t>(config.smem_bytes())};
    const Needs needs = needs_of(call, config.B_r, config.B_c, config.d_head);
    return start(kernels, needs, geometry, call, stream);
}

}  // namespace flashsmith::host
