// The backward kernel on wgmma and TMA: dK and dV of kv blocks, and what each adds to dQ, in
// float32.
//
// Ctas are persistent. One thread of the producer's warpgroup draws kv blocks and copies K, V, and
// Q and dO of every q tile that sees them, into rings; two warpgroups multiply. Up to d_head 128
// each owns 64 keys (consumer.cuh); above, they share 64 (wide.cuh).
#pragma once

#include "flashsmith/ptx/grid_dependency.cuh"
#include "flashsmith/sm90/backward/adders.cuh"
#include "flashsmith/sm90/backward/consumer.cuh"
#include "flashsmith/sm90/backward/producer.cuh"
#include "flashsmith/sm90/backward/wide.cuh"

namespace flashsmith::sm90 {

// What S and dP are multiplied out with to take the sum of the three parts of a statistic: a half
// each, since both halves of a step's columns are the same. Threads 0 .. 7 write a row each.
template <Sm90TilesConfig kConfig>
FS_DEVICE void write_ones() {
    constexpr u32 kHalf = 0x3f00;  // bf16
    if (threadIdx.x < 8) {
        ptx::st_shared_16b({BackwardPlan<kConfig>::kOnes + threadIdx.x * 16},
                           {{kHalf | kHalf << 16, kHalf, 0, 0}});
        ptx::fence_proxy_async();  // wgmma reads them
    }
}

template <Sm90TilesConfig kConfig, Needs kNeeds>
FS_DEVICE void backward(const Sm90BackwardArgs& args) {
    using Kernel = BackwardKernel<kConfig, kNeeds>;
    using Plan = typename Kernel::Plan;
    constexpr int kProducerRegisters = 24, kConsumerRegisters = 240;  // all that a block has
    extern __shared__ __align__(1024) unsigned char shared_memory[];
    const int warpgroup = ptx::broadcast(threadIdx.x / kWarpgroupThreads);
    if (threadIdx.x == 0) {
        if (static_cast<u32>(__cvta_generic_to_shared(shared_memory)) != Plan::kBase) __trap();
        if constexpr (Kernel::kListed) Kernel::ListedPlan::init_barriers();
        Plan::init_barriers();
    }
    if constexpr (kConfig.fold) write_ones<kConfig>();
    ptx::bar_sync();  // barriers and ones are there
    if constexpr (kConfig.early_start) {
        ptx::wait_for_launch_before();  // statistics and counters are there,
        ptx::launch_dependents();       // so that they are for the launch behind this one too
    }

    if (warpgroup == 0) {
        ptx::setmaxnreg_dec<kProducerRegisters>();
        const u32 warp = threadIdx.x / kWarpLanes;
        if (threadIdx.x == 0) BackwardProducer<Kernel>(args).run();
        if constexpr (kConfig.has_adders() && kConfig.has_many_adders()) {
            if (threadIdx.x % kWarpLanes == 0 && warp > 0 && warp <= kConfig.adders) {
                DqAdders<Kernel>(args, warp - 1).run();
            }
        } else if constexpr (kConfig.has_adders()) {
            if (threadIdx.x % kWarpLanes == 0 && (warp == 1 || warp == 2)) {
                DqAdder<Kernel>(args, warp - 1).run();
            }
        }
        if constexpr (Kernel::kListed) {
            if (warp == 3) Kernel::ListedPlan::sweep();
        }
    } else {
        ptx::setmaxnreg_inc<kConsumerRegisters>();
        if constexpr (!kConfig.has_roles()) {
            BackwardConsumer<Kernel>(args, warpgroup - 1).run();
        } else if (warpgroup == 1) {
            WideConsumer<Kernel, true>(args).run();
        } else {
            WideConsumer<Kernel, false>(args).run();
        }
    }
}

}  // namespace flashsmith::sm90
