// Where the backward kernel keeps what in shared memory; matrices are panels (tile/panel.cuh).
//
//   K | V | Q stages | dO stages | dS stages | staged dQ or P | statistics stages | ones |
//   barriers | kv blocks | dQ rounded
//
// All addresses are constants: registers for them would not fit beside the accumulators. Dynamic
// shared memory begins at kBase where there is no other; the kernel checks it.
#pragma once

#include "flashsmith/ptx/mbarrier.cuh"
#include "flashsmith/tile/panel.cuh"
#include "flashsmith/tile/ring.cuh"

namespace flashsmith::sm90 {

template <Sm90TilesConfig kConfig>
struct BackwardPlan {
    static constexpr u32 kBase = 1024;
    static constexpr int kRowStages = kConfig.row_stages();
    static constexpr int kDsStages = kConfig.ds_stages;
    static constexpr int kBlockSlots = kConfig.block_slots();

    static constexpr u32 kK = kBase;
    static constexpr u32 kV = kK + kConfig.kv_bytes();
    static constexpr u32 kQ = kV + kConfig.kv_bytes();
    static constexpr u32 kDO = kQ + kRowStages * kConfig.q_bytes();
    static constexpr u32 kDs = kDO + kRowStages * kConfig.q_bytes();
    static constexpr u32 kDq = kDs + kDsStages * kConfig.ds_bytes();
    static constexpr u32 kP = kDq + (kConfig.stages_dq() ? 2 * kConfig.piece_bytes() : 0);
    static constexpr u32 kStatistics = kP + kConfig.p_bytes();
    static constexpr u32 kOnes = kStatistics + kRowStages * kConfig.statistics_bytes();
    static constexpr u32 kBarriers = kOnes + kConfig.ones_bytes();
    static constexpr u32 kBlocks = kBarriers + kConfig.barriers() * kBarrierBytes;
    static_assert(kRowStages == 2, "a step's number is stage and parity.");
    static_assert(!kConfig.has_roles() || kDsStages == 2, "and with roles it is those of dS too.");
    static constexpr u32 kRounded = kBlocks + kBlockSlots * 16;  // with rounds_dq: a word a warp
    static_assert(kRounded + kConfig.rounded_bytes() == kBase + kConfig.smem_bytes(),
                  "the plan and the configuration must agree on the size of shared memory.");

    static FS_DEVICE SmemAddr q(int stage) { return {kQ + stage * kConfig.q_bytes()}; }
    static FS_DEVICE SmemAddr d_o(int stage) { return {kDO + stage * kConfig.q_bytes()}; }
    static FS_DEVICE SmemAddr statistics(int stage) {
        return {kStatistics + stage * kConfig.statistics_bytes()};
    }
    // Where warpgroup `w` stages its piece of dQ.
    static FS_DEVICE SmemAddr dq(int w) { return {kDq + w * kConfig.piece_bytes()}; }
    static FS_DEVICE SmemAddr kv_block(int slot) { return {kBlocks + slot * 16}; }

    static FS_DEVICE SmemAddr rounded(int warp) { return {kRounded + warp * 4}; }

    static FS_DEVICE SmemAddr k_full() { return barrier(0); }
    static FS_DEVICE SmemAddr k_empty() { return barrier(1); }
    static FS_DEVICE SmemAddr v_full() { return barrier(2); }
    static FS_DEVICE SmemAddr v_empty() { return barrier(3); }
    static FS_DEVICE SmemAddr q_full(int i) { return barrier(4 + i); }
    static FS_DEVICE SmemAddr q_empty(int i) { return barrier(4 + kRowStages + i); }
    static FS_DEVICE SmemAddr d_o_full(int i) { return barrier(4 + 2 * kRowStages + i); }
    static FS_DEVICE SmemAddr d_o_empty(int i) { return barrier(4 + 3 * kRowStages + i); }
    static FS_DEVICE SmemAddr ds_full(int i) { return barrier(kAfterRows + i); }
    static FS_DEVICE SmemAddr ds_empty(int i) { return barrier(kAfterRows + kDsStages + i); }
    static FS_DEVICE SmemAddr block_full(int i) { return barrier(kAfterDs + i); }
    static FS_DEVICE SmemAddr block_empty(int i) { return barrier(kAfterDs + kBlockSlots + i); }
    // Of a warpgroup's piece number `piece`.
    static FS_DEVICE SmemAddr dq_full(int w, u32 piece) {
        return barrier(kAfterDs + 2 * kBlockSlots + w + 2 * (piece % kConfig.dq_phases()));
    }
    static FS_DEVICE SmemAddr dq_empty(int w) {
        return barrier(kAfterDs + 2 * kBlockSlots + 2 * kConfig.dq_phases() + w);
    }
    static FS_DEVICE SmemAddr p_full() { return barrier(kAfterDs + 2 * kBlockSlots); }
    static FS_DEVICE SmemAddr p_empty() { return barrier(kAfterDs + 2 * kBlockSlots + 1); }

    // One thread; a barrier of the block must follow.
    static FS_DEVICE void init_barriers() {
        constexpr int kWarps = 4;  // of a warpgroup: one lane of each warp arrives
        constexpr int kAdders = kConfig.has_adders() ? kConfig.adders : 0;
        constexpr int kDsWarps = kConfig.has_roles() ? kWarps : 2 * kWarps;
        ptx::mbarrier_init(k_full(), 1);
        ptx::mbarrier_init(k_empty(), 2 * kWarps);
        ptx::mbarrier_init(v_full(), 1);
        ptx::mbarrier_init(v_empty(), 2 * kWarps);
        for (int i = 0; i < kRowStages; ++i) {
            ptx::mbarrier_init(q_full(i), 1);
            ptx::mbarrier_init(q_empty(i), 2 * kWarps);
            ptx::mbarrier_init(d_o_full(i), 1);
            ptx::mbarrier_init(d_o_empty(i), 2 * kWarps);
        }
        for (int i = 0; i < kDsStages; ++i) {
            ptx::mbarrier_init(ds_full(i), kDsWarps);
            ptx::mbarrier_init(ds_empty(i), 2 * kWarps);
        }
        for (int i = 0; i < kBlockSlots; ++i) {
            ptx::mbarrier_init(block_full(i), 1);
            ptx::mbarrier_init(block_empty(i), 2 * kWarps + kAdders);
        }
        if constexpr (kConfig.has_roles()) {
            ptx::mbarrier_init(p_full(), kWarps);
            ptx::mbarrier_init(p_empty(), kWarps);
        } else {
            for (int w = 0; w < 2; ++w) {
                for (int i = 0; i < kConfig.dq_phases(); ++i) {
                    ptx::mbarrier_init(dq_full(w, i), kWarps);
                }
                ptx::mbarrier_init(dq_empty(w), 1);
            }
        }
        ptx::fence_mbarrier_init();
    }

  private:
    static constexpr int kAfterRows = 4 + 4 * kRowStages;
    static constexpr int kAfterDs = kAfterRows + 2 * kDsStages;

    static FS_DEVICE SmemAddr barrier(int index) { return {kBarriers + index * kBarrierBytes}; }
};

}  // namespace flashsmith::sm90
