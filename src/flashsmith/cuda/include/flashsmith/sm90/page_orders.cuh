// What the producer tells the warps that copy pages (page_copies.cuh): which kv block comes next.
//
// For each stage of K, and of V, one order. They may come before their stages are free.
#pragma once

#include "flashsmith/ptx/barrier.cuh"
#include "flashsmith/ptx/mbarrier.cuh"
#include "flashsmith/ptx/memory.cuh"
#include "flashsmith/ptx/warpgroup.cuh"
#include "flashsmith/sm90/listed.cuh"

namespace flashsmith::sm90 {

// Behind the memory of the list: full barriers of K and of V, empty ones, orders of 8 bytes.
template <Sm90ForwardConfig kConfig>
struct PageOrders {
    static constexpr int kPlaces = 2 * kConfig.kv_stages;
    static constexpr int kFull = ListedPlan<kConfig>::kSequences + ListedPlan<kConfig>::kBytes;
    static constexpr int kEmpty = kFull + kPlaces * kBarrierBytes;
    static constexpr int kOrders = kEmpty + kPlaces * kBarrierBytes;
    static constexpr u32 kNone = ~0u;  // nothing is left to copy
    static_assert(kOrders + kPlaces * 8 - kFull == kPagedStageBytes * kConfig.kv_stages,
                  "the plan and the host must agree on the size of shared memory.");

    SmemAddr base;

    // One thread, before the plan of the configuration initialises its own.
    FS_DEVICE void init_barriers() const {
        for (int i = 0; i < 2 * kPlaces; ++i) ptx::mbarrier_init(full(false, i), 1);
    }

    // The producer; `parity` is that of a ring whose places are free at first.
    FS_DEVICE void send(bool is_v, int stage, u32 parity, u32 order) const {
        ptx::mbarrier_wait(full(is_v, stage) + (kEmpty - kFull), parity);
        ptx::st_shared_b32(place(is_v, stage), order);
        ptx::mbarrier_arrive(full(is_v, stage));
    }

    // One warp, which leaves the place to the producer.
    FS_DEVICE u32 take(bool is_v, int stage, u32 parity, int lane) const {
        ptx::mbarrier_wait(full(is_v, stage), parity);
        const u32 order = ptx::ld_shared_b32(place(is_v, stage));
        ptx::bar_warp_sync();  // all lanes have read it
        ptx::mbarrier_arrive_if(lane == 0, full(is_v, stage) + (kEmpty - kFull));
        return order;
    }

  private:
    FS_DEVICE SmemAddr full(bool is_v, int stage) const {
        return base + (kFull + (is_v * kConfig.kv_stages + stage) * kBarrierBytes);
    }
    FS_DEVICE SmemAddr place(bool is_v, int stage) const {
        return base + (kOrders + (is_v * kConfig.kv_stages + stage) * 8);
    }
};

}  // namespace flashsmith::sm90
