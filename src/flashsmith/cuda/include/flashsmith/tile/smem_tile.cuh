// A block of rows in shared memory: where a 16-byte chunk lies, swizzled or plain.
//
//   a row of d_head 64 is 8 chunks: all 32 banks     swizzled: chunk c of row r is at c ^ (r % 8)
//   row 0 | 0 1 2 3 4 5 6 7                           row 0 | 0 1 2 3 4 5 6 7
//   row 1 | 0 1 2 3 4 5 6 7   a column of 8 rows is   row 1 | 1 0 3 2 5 4 7 6   a column is 8
//   row 2 | 0 1 2 3 4 5 6 7   8 times the same banks  row 2 | 2 3 0 1 6 7 4 5   different groups
#pragma once

#include "flashsmith/base/types.cuh"

namespace flashsmith {

template <int kRowsArg, int kColsArg, bool kSwizzledArg>
struct SmemTile {
    static constexpr int kRows = kRowsArg;
    static constexpr int kCols = kColsArg;
    static constexpr bool kSwizzled = kSwizzledArg;
    static constexpr int kChunks = kCols / kChunkElements;  // of one row
    static constexpr int kRowBytes = kCols * kElementBytes;
    static constexpr int kBytes = kRows * kRowBytes;
    static constexpr int kSwizzleRows = 8;  // rows after which the pattern repeats
    static constexpr int kPanelBytes = 0;   // rows lie whole

    static_assert(kChunks >= kSwizzleRows, "a row must span all banks for the swizzle to help.");

    // Bytes from the tile's start to chunk `chunk` of row `row`.
    FS_DEVICE static u32 offset(u32 row, u32 chunk) {
        const u32 place = kSwizzled ? chunk ^ (row % kSwizzleRows) : chunk;
        return row * kRowBytes + place * kChunkBytes;
    }
};

}  // namespace flashsmith
