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

// A matrix of panels, as a lane reads it (tile/fragment.cuh): chunks of its first panel.
template <int kRowsArg, int kColsArg>
struct PanelTile {
    static constexpr int kRows = kRowsArg;
    static constexpr int kCols = kColsArg;
    static constexpr bool kSwizzled = true;
    static constexpr int kRowBytes = kPanelRowBytes;
    static constexpr int kPanels = kCols / kPanelColumns;
    static constexpr int kPanelBytes = kRows * kPanelRowBytes;
    static constexpr int kBytes = kPanels * kPanelBytes;
    static constexpr int kSwizzleRows = 8;

    static_assert(kCols % kPanelColumns == 0, "a matrix must be whole panels.");
    static_assert(kPanelBytes % 1024 == 0, "the swizzle is a function of the address.");

    // Bytes from the matrix's start to chunk `chunk` of row `row`.
    FS_DEVICE static u32 offset(u32 row, u32 chunk) {
        return row * kPanelRowBytes + (chunk ^ (row % kSwizzleRows)) * kChunkBytes;
    }
};

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
