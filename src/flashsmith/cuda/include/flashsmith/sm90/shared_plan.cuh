// Where the forward kernel keeps what in shared memory; matrices are panels (tile/panel.cuh).
//
//   Q slots | K stages | V stages | O of each warpgroup | ones | barriers | tiles
#pragma once

#include "flashsmith/ptx/mbarrier.cuh"
#include "flashsmith/tile/panel.cuh"
#include "flashsmith/tile/ring.cuh"

namespace flashsmith::sm90 {

template <Sm90ForwardConfig kConfig>
struct SharedPlan {
    static constexpr int kStages = kConfig.kv_stages;
    static constexpr int kSlots = kConfig.q_slots;

    static constexpr int kK = kSlots * kConfig.q_slot_bytes();
    static constexpr int kV = kK + kStages * kConfig.kv_bytes();
    static constexpr int kO = kV + kStages * kConfig.kv_bytes();
    static constexpr int kOnes = kO + kConfig.n_warpgroups * kConfig.o_slot_bytes();
    static constexpr int kBarriers = kOnes + kConfig.ones_bytes();
    static constexpr int kTiles = kBarriers + kConfig.barriers() * kBarrierBytes;
    static_assert(kTiles + (kTileSlots + 1) * kConfig.tile_slot_bytes() == kConfig.smem_bytes(),
                  "the plan and the configuration must agree on the size of shared memory.");

    // An empty barrier follows the full ones of its ring at a constant distance.
    static constexpr int kKvEmpty = kStages * kBarrierBytes;

    SmemAddr base;

    FS_DEVICE SmemAddr q(int slot) const { return base + slot * kConfig.q_slot_bytes(); }
    FS_DEVICE SmemAddr k(int stage) const { return base + (kK + stage * kConfig.kv_bytes()); }
    FS_DEVICE SmemAddr v(int stage) const { return base + (kV + stage * kConfig.kv_bytes()); }
    FS_DEVICE SmemAddr o(int warpgroup) const {
        return base + (kO + warpgroup * kConfig.o_slot_bytes());
    }
    FS_DEVICE SmemAddr ones() const { return base + kOnes; }
    // Slot kTileSlots is the mailbox for tiles drawn by the cluster's first block.
    FS_DEVICE SmemAddr tile(int slot) const {
        return base + (kTiles + slot * kConfig.tile_slot_bytes());
    }

    FS_DEVICE SmemAddr q_full(int slot) const { return barrier(slot); }
    FS_DEVICE SmemAddr q_empty(int slot) const { return barrier(kSlots + slot); }
    FS_DEVICE SmemAddr k_full(int stage) const { return barrier(2 * kSlots + stage); }
    FS_DEVICE SmemAddr k_empty(int stage) const { return k_full(stage) + kKvEmpty; }
    FS_DEVICE SmemAddr v_full(int stage) const { return barrier(2 * kSlots + 2 * kStages + stage); }
    FS_DEVICE SmemAddr v_empty(int stage) const { return v_full(stage) + kKvEmpty; }
    FS_DEVICE SmemAddr tile_full(int slot) const { return barrier(kAfterKv + slot); }
    FS_DEVICE SmemAddr tile_empty(int slot) const { return barrier(kAfterKv + kTileSlots + slot); }
    // A tile's number on its way from the cluster's first block to the others.
    FS_DEVICE SmemAddr draw_full() const { return barrier(kAfterKv + 2 * kTileSlots); }
    FS_DEVICE SmemAddr draw_empty() const { return barrier(kAfterKv + 2 * kTileSlots + 1); }

    // One thread; a barrier of the block, or of the cluster, must follow.
    FS_DEVICE void init_barriers() const {
        constexpr int kWarps = 4;  // of a warpgroup: one lane of each warp arrives
        constexpr int kConsumers = kWarps * kConfig.n_warpgroups;
        for (int i = 0; i < kSlots; ++i) {
            ptx::mbarrier_init(q_full(i), 1);
            ptx::mbarrier_init(q_empty(i), kWarps);
        }
        for (int i = 0; i < kStages; ++i) {
            ptx::mbarrier_init(k_full(i), 1);
            ptx::mbarrier_init(v_full(i), 1);
            ptx::mbarrier_init(k_empty(i), kConsumers * kConfig.cluster);
            ptx::mbarrier_init(v_empty(i), kConsumers * kConfig.cluster);
        }
        for (int i = 0; i < kTileSlots; ++i) {
            ptx::mbarrier_init(tile_full(i), 1);
            ptx::mbarrier_init(tile_empty(i), kConsumers);
        }
        ptx::mbarrier_init(draw_full(), 1);
        ptx::mbarrier_init(draw_empty(), 1);
        ptx::fence_mbarrier_init();
    }

  private:
    static constexpr int kAfterKv = 2 * kSlots + 4 * kStages;

    FS_DEVICE SmemAddr barrier(int index) const {
        return base + (kBarriers + index * kBarrierBytes);
    }
};

}  // namespace flashsmith::sm90
