// Panels: how matrices lie in shared memory for TMA and wgmma, and what a warpgroup is.
//
// A matrix is panels of 64 columns; a panel is rows of 128 bytes whose 16-byte chunks are XORed
// with the row's number modulo 8: what TMA writes and wgmma reads with the 128-byte swizzle.
//
//   matrix of 128 columns     panel: row r            chunk c of 16 bytes lies at c ^ (r % 8)
//   | panel 0 | panel 1 |       row 0 | 0 1 2 3 4 5 6 7
//   |  64 col |  64 col |       row 1 | 1 0 3 2 5 4 7 6
//                               row 2 | 2 3 0 1 6 7 4 5
#pragma once

#include "flashsmith/base/types.cuh"

namespace flashsmith {

inline constexpr int kWarpgroupThreads = 128;
inline constexpr int kWarpgroupRows = 64;  // of the A operand of wgmma m64nNk16

inline constexpr int kPanelColumns = 64;
inline constexpr int kPanelRowBytes = 128;

// Named barriers from here on are for the threads of one warpgroup each; those before, for turns.
inline constexpr u32 kWarpgroupBarrier = 8;

// The address that lane l of a warp gives to stmatrix for columns 16i..16i+15 of its 16 rows:
// lanes 0-15 its rows' even chunk, lanes 16-31 the odd one. `block` has 64 rows a panel.
FS_DEVICE SmemAddr swizzled_rows(SmemAddr block, int thread, int i) {
    const int lane = thread % kWarpLanes;
    const int row = thread / kWarpLanes * 16 + lane % 16;
    const int chunk = i % 4 * 2 + lane / 16;
    return block + ((i / 4) * kWarpgroupRows * kPanelRowBytes + row * kPanelRowBytes +
                    ((chunk ^ (row & 7)) << 4));
}

}  // namespace flashsmith
