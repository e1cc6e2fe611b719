// The forward kernel on wgmma and TMA: a producer warpgroup feeds consumer warpgroups.
//
// Ctas are persistent. One thread of the producer draws tiles of query rows and copies Q, K and V
// by TMA into rings; each consumer warpgroup owns 64 rows of a tile and multiplies by wgmma. The
// rings carry on from tile to tile, so the next tile's operands arrive while this one is finished.
#pragma once

#include "flashsmith/sm90/loops.cuh"
#include "flashsmith/sm90/page_copies.cuh"
#include "flashsmith/sm90/producer.cuh"

namespace flashsmith::sm90 {

// All threads of the block; a barrier must follow. Every element is 1, so the swizzle is no matter.
template <Sm90ForwardConfig kConfig>
FS_DEVICE void fill_with_ones(const SharedPlan<kConfig>& smem) {
    constexpr u32 kPair = kConfig.dtype == DType::kBF16 ? 0x3f803f80 : 0x3c003c00;
    for (int at = threadIdx.x * kChunkBytes; at < kConfig.ones_bytes();
         at += kConfig.threads() * kChunkBytes) {
        ptx::st_shared_16b(smem.ones() + at, {{kPair, kPair, kPair, kPair}});
    }
    ptx::fence_proxy_async();  // wgmma reads them
}

template <Sm90ForwardConfig kConfig, Needs kNeeds>
FS_DEVICE void forward(const Sm90ForwardArgs& args) {
    using Kernel = ForwardKernel<kConfig, kNeeds>;
    // The swizzle is a function of the address: panels begin at multiples of 1024 bytes.
    extern __shared__ __align__(1024) unsigned char shared_memory[];
    const SharedPlan<kConfig> smem{{static_cast<u32>(__cvta_generic_to_shared(shared_memory))}};
    const u32 rank = kConfig.cluster > 1 ? ptx::cluster_ctarank() : 0;
    const int warpgroup = ptx::broadcast(threadIdx.x / kWarpgroupThreads);

    if (Kernel::kListed && threadIdx.x == 0) typename Kernel::Listed{smem.base}.init_barriers();
    if (Kernel::kPaged && threadIdx.x == 0) typename Kernel::Orders{smem.base}.init_barriers();
    if (threadIdx.x == 0) smem.init_barriers();
    if constexpr (Kernel::kMmaSums) fill_with_ones<kConfig>(smem);
    if constexpr (kConfig.cluster > 1) {
        ptx::barrier_cluster_sync();  // no block uses another's barriers before they exist
    } else {
        ptx::bar_sync();
    }

    if (warpgroup == 0) {
        ptx::setmaxnreg_dec<kConfig.producer_registers>();
        if (threadIdx.x == 0) Producer<Kernel>(args, smem, rank).run();
        const int warp = threadIdx.x / kWarpLanes;
        if constexpr (Kernel::kPaged) {
            if (warp == 1) PageCopies<Kernel, false>(args, smem).run();
            if (warp == 2) PageCopies<Kernel, true>(args, smem).run();
        } else if constexpr (Kernel::kListed) {
            if (warp == 1) sweep_tails<kConfig>(smem);
        }
        // The first warp is whole again for the cluster's barrier.
        if constexpr (kConfig.cluster > 1) ptx::bar_warp_sync();
    } else {
        ptx::setmaxnreg_inc<kConfig.consumer_registers>();
        if constexpr (kConfig.overlap) {
            OverlappedLoop<Kernel>(args, smem, warpgroup - 1).run();
        } else {
            PlainLoop<Kernel>(args, smem, warpgroup - 1).run();
        }
        // Shared memory is there until the last stores have read it.
        if constexpr (kConfig.o_staged || Kernel::kOInQ)
            ptx::bulk_wait_if(threadIdx.x % kWarpgroupThreads == 0);
    }
    if constexpr (kConfig.cluster > 1) {
        ptx::barrier_cluster_sync();  // no block leaves while another may write to its memory
    }
}

}  // namespace flashsmith::sm90
