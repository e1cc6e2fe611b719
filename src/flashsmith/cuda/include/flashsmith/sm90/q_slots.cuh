// The slots of shared memory that Q of the next tiles comes to.
#pragma once

#include "flashsmith/ptx/wgmma.cuh"
#include "flashsmith/tile/panel.cuh"

namespace flashsmith::sm90 {

// The ring of Q slots as one warpgroup walks it: every kWarpgroups-th slot is its own.
template <int kSlots, int kSlotBytes, int kWarpgroups>
struct QSlots {
    ptx::MatrixDescriptor first, matrix;
    int slot;
    u32 parity;

    FS_DEVICE QSlots(SmemAddr first_slot, int warpgroup)
        : first(ptx::MatrixDescriptor::of(first_slot, kPanelRowBytes)),
          matrix(first),
          slot(warpgroup),
          parity(0) {}

    // Q of the present slot is the operand from here on.
    FS_DEVICE void use() { matrix = first + slot * kSlotBytes; }

    FS_DEVICE void advance() {
        slot += kWarpgroups;
        if (slot >= kSlots) {
            slot -= kSlots;
            parity ^= 1;
        }
    }
};

}  // namespace flashsmith::sm90
