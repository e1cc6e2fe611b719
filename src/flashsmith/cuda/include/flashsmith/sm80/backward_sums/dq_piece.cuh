// Sums of dQ in scratch memory, in float32: pieces of 16 rows x 8 columns, as mma leaves them, all
// columns of 16 rows one after the other. A lane has four numbers of a piece.
//
//   sm_90 and later: lane after lane, four numbers each     one red.v4 a lane
//   before:          number after number, 32 lanes each     four reds, each of 128 bytes a warp
#pragma once

#include "flashsmith/base/types.cuh"
#include "flashsmith/ptx/atomic.cuh"
#include "flashsmith/ptx/memory.cuh"

namespace flashsmith::sm80 {

struct DqPiece {
    static constexpr int kRows = 16;
    static constexpr int kCols = 8;
    static constexpr int kNumbers = kRows * kCols;

    float* first;  // of this lane's numbers

    // The piece of column 0 at row `row`, a multiple of 16, of all heads' rows.
    FS_DEVICE static DqPiece at_row(float* sums, i64 row, int width) {
        const u32 lane = threadIdx.x % kWarpLanes;
        return {sums + row * width + lane * (ptx::kHasVectorSums ? 4 : 1)};
    }
    // The piece `count` pieces behind it.
    FS_DEVICE DqPiece behind(int count) const { return {first + count * kNumbers}; }

    FS_DEVICE void load(float (&x)[4]) const {
        if constexpr (ptx::kHasVectorSums) {
            ptx::ld_global_f32x4(x, first);
        } else {
            FS_UNROLL
            for (int e = 0; e < 4; ++e) x[e] = ptx::ld_global_f32(first + e * kWarpLanes);
        }
    }
    FS_DEVICE void store(const float (&x)[4]) const {
        if constexpr (ptx::kHasVectorSums) {
            ptx::st_global_f32x4(first, x);
        } else {
            FS_UNROLL
            for (int e = 0; e < 4; ++e) ptx::st_global_f32(first + e * kWarpLanes, x[e]);
        }
    }
    FS_DEVICE void add(const float (&x)[4]) const {
        if constexpr (ptx::kHasVectorSums) {
            ptx::red_add_f32x4(first, x);
        } else {
            FS_UNROLL
            for (int e = 0; e < 4; ++e) ptx::red_add_f32(first + e * kWarpLanes, x[e]);
        }
    }
};

}  // namespace flashsmith::sm80
