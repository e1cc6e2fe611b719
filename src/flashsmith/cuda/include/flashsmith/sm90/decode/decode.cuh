// The decode kernel of sm_90 (decode/compute.cuh): mma.sync on K and V that come by TMA.
#pragma once

#include "flashsmith/decode/compute.cuh"
#include "flashsmith/sm90/decode/copies.cuh"

namespace flashsmith::sm90 {

template <Sm90DecodeConfig kConfig, Needs kNeeds>
FS_DEVICE void decode(const Sm90DecodeArgs& args) {
    using Kernel = flashsmith::decode::DecodeKernel<kConfig, kNeeds, Sm90DecodeArgs, ByBoxes>;
    static_assert(Kernel::kRings % 1024 == 0, "panels begin at multiples of 1024 bytes.");
    extern __shared__ __align__(1024) unsigned char smem[];
    const SmemAddr start{static_cast<u32>(__cvta_generic_to_shared(smem))};
    if (threadIdx.x == 0) {
        for (int i = 0; i < Kernel::kTeams * Kernel::kStages; ++i) {
            ptx::mbarrier_init(start + (Kernel::kBarriers + i * kBarrierBytes), 1);
        }
        ptx::fence_mbarrier_init();
    }
    ptx::bar_sync();  // barriers are there
    flashsmith::decode::run<Kernel>(args, start);
}

}  // namespace flashsmith::sm90
