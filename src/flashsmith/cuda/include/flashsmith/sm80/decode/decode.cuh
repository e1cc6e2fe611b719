// The decode kernel of the mma.sync family (decode/compute.cuh), K and V by cp.async.
#pragma once

#include "flashsmith/decode/compute.cuh"
#include "flashsmith/sm80/decode/copies.cuh"

namespace flashsmith::sm80 {

template <Sm80DecodeConfig kConfig, Needs kNeeds>
FS_DEVICE void decode(const DecodeArgs& args) {
    using Kernel = flashsmith::decode::DecodeKernel<kConfig, kNeeds, DecodeArgs, ByCpAsync>;
    extern __shared__ __align__(1024) unsigned char smem[];
    flashsmith::decode::run<Kernel>(args, {static_cast<u32>(__cvta_generic_to_shared(smem))});
}

}  // namespace flashsmith::sm80
