// Turns of warpgroups on the tensor cores: one issues its products, then lets the next do so.
#pragma once

#include "flashsmith/ptx/barrier.cuh"
#include "flashsmith/tile/panel.cuh"

namespace flashsmith::sm90 {

// Warpgroup w waits on named barrier 1 + w, on which the one before it arrives.
template <bool kTaken, int kWarpgroups>
struct WarpgroupTurns {
    static constexpr u32 kBarrier = 1;

    static FS_DEVICE void take(int warpgroup) {
        if constexpr (kTaken) ptx::bar_sync_named(kBarrier + warpgroup, 2 * kWarpgroupThreads);
    }
    static FS_DEVICE void pass(int warpgroup) {
        if constexpr (kTaken) {
            const int next = warpgroup + 1 == kWarpgroups ? 0 : warpgroup + 1;
            ptx::bar_arrive_named(kBarrier + next, 2 * kWarpgroupThreads);
        }
    }
    // Once, before the first turn: it is the first warpgroup's.
    static FS_DEVICE void open(int warpgroup) {
        if (kTaken && warpgroup == 0) ptx::bar_arrive_named(kBarrier, 2 * kWarpgroupThreads);
    }
};

}  // namespace flashsmith::sm90
