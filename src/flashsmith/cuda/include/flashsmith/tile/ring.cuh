// Rings of stages in shared memory that copies fill and products empty: where each side stands.
//
//   full:   | 0 | 1 | … |  a copy has landed in the stage      (one mbarrier a stage)
//   empty:  | 0 | 1 | … |  every reader has left the stage     (behind all of the full ones)
#pragma once

#include "flashsmith/base/types.cuh"
#include "flashsmith/ptx/mbarrier.cuh"
#include "flashsmith/ptx/wgmma.cuh"

namespace flashsmith {

inline constexpr int kBarrierBytes = 8;

// The writer's place: a stage, and the parity of its empty barrier. 1 passes in the first round.
struct RingCursor {
    int stage = 0;
    u32 parity = 1;

    FS_DEVICE void advance(int stages) {
        if (++stage == stages) {
            stage = 0;
            parity ^= 1;
        }
    }
};

// The reader's place, where stages are operands of wgmma. Descriptor, barrier and parity of the
// present stage are carried along, so that nothing is left to compute between a wait and the
// product behind it.
// kPinned: the second panel of every stage is one that does not move. Where the address grows by a
// stage, the distance to it, 16 bits above it in the descriptor, shrinks by one.
// kTests: barriers may be tested before they are waited for.
template <int kStages, int kStageBytes, bool kTests, bool kPinned = false>
struct OperandRing {
    static constexpr u32 kStageUnits = kStageBytes >> 4;
    static constexpr u32 kStageStep = kPinned ? kStageUnits - (kStageUnits << 16) : kStageUnits;

    u32 first_low, first_full;  // of stage 0
    ptx::MatrixDescriptor matrix;
    SmemAddr full;
    u32 parity;
    bool landed = false;  // known from an early test

    FS_DEVICE OperandRing(ptx::MatrixDescriptor first, SmemAddr first_barrier)
        : first_low(first.low),
          first_full(first_barrier.value),
          matrix(first),
          full(first_barrier),
          parity(0) {}

    // What was copied into this stage has landed after this.
    FS_DEVICE void wait() const {
        if (kTests && landed) return;
        ptx::mbarrier_wait(full, parity);
    }

    // Asks before the answer is needed: a test takes about 50 cycles (H200, 2026-11).
    FS_DEVICE void test() {
        if constexpr (kTests) landed = ptx::mbarrier_test(full, parity);
    }

    FS_DEVICE SmemAddr empty() const { return full + kStages * kBarrierBytes; }

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
