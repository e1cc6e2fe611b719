// Where a Hopper kernel keeps what in shared memory, and the rings that consumers walk over it.
//
//   Q slots | K stages | V stages | O of each warpgroup | P of each | ones | barriers | tiles
//
// Every matrix is panels of 64 columns; a panel is rows of 128 bytes whose 16-byte chunks are
// XORed with the row's number modulo 8: what TMA writes and wgmma reads with 128-byte swizzle.
#pragma once

#include "flashsmith/ptx/mbarrier.cuh"
#include "flashsmith/ptx/wgmma.cuh"
#include "flashsmith/sm90/config.cuh"

namespace flashsmith {

template <HopperForwardKernelConfig kConfig>
struct HopperSmem {
    static constexpr int kStages = kConfig.kv_stages;
    static constexpr int kSlots = kConfig.q_slots;

    static constexpr int kK = kSlots * kConfig.q_slot_bytes();
    static constexpr int kV = kK + kStages * kConfig.kv_bytes();
    static constexpr int kO = kV + kStages * kConfig.kv_bytes();
    static constexpr int kP = kO + kConfig.n_warpgroups * kConfig.o_slot_bytes();
    static constexpr int kOnes = kP + kConfig.n_warpgroups * kConfig.p_slot_bytes();
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
    FS_DEVICE SmemAddr p(int warpgroup) const {
        return base + (kP + warpgroup * kConfig.p_slot_bytes());
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

// A consumer's place in the K or V ring. Descriptor, barrier and parity of the present stage are
// carried along, so that nothing is left to compute between a wait and the product behind it.
// `kSums`: the second panel is the ones, which do not move: where the address grows by a stage, the
// distance to them, 16 bits above it, shrinks by one.
template <HopperForwardKernelConfig kConfig, bool kSums = false>
struct KvRing {
    static constexpr u32 kStageUnits = kConfig.kv_bytes() >> 4;
    static constexpr u32 kStageStep = kSums ? kStageUnits - (kStageUnits << 16) : kStageUnits;
    static constexpr int kStages = kConfig.kv_stages;

    u32 first_low, first_full;  // of stage 0
    ptx::MatrixDescriptor matrix;
    SmemAddr full;
    u32 parity;
    bool landed = false;  // known from an early test

    FS_DEVICE KvRing(ptx::MatrixDescriptor first, SmemAddr first_barrier)
        : first_low(first.low),
          first_full(first_barrier.value),
          matrix(first),
          full(first_barrier),
          parity(0) {}

    // The block of this stage has landed after this.
    FS_DEVICE void wait() const {
        if (kConfig.early_tests && landed) return;
        ptx::mbarrier_wait(full, parity);
    }

    // Asks before the answer is needed: a test takes about 50 cycles (H200, 2026-11).
    FS_DEVICE void test() {
        if constexpr (kConfig.early_tests) landed = ptx::mbarrier_test(full, parity);
    }

    FS_DEVICE SmemAddr empty() const { return full + HopperSmem<kConfig>::kKvEmpty; }

    FS_DEVICE void advance() {
        landed = false;
        if constexpr (kStages == 2) {  // the other stage, by one subtraction each
            matrix.low = 2 * first_low + kStageStep - matrix.low;
            full.value = 2 * first_full + kBarrierBytes - full.value;
            parity ^= full.value == first_full;
        } else {
            const u32 next = full.value + kBarrierBytes;
            const bool wraps = next == first_full + kStages * kBarrierBytes;
            full.value = wraps ? first_full : next;
            matrix.low = first_low + (full.value - first_full) / kBarrierBytes * kStageStep;
            parity ^= wraps;
        }
    }
};

}  // namespace flashsmith
