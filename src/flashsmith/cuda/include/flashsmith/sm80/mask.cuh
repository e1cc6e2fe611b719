// Removes from S what a row must not see: keys past the end, and right of the diagonal.
#pragma once

#include "flashsmith/sm80/args.cuh"
#include "flashsmith/sm80/static_config.cuh"

namespace flashsmith {

// How many keys, from the first, row `row` sees.
template <class Kernel>
FS_DEVICE int visible_keys(const ForwardArgs& args, int row) {
    if constexpr (Kernel::kTraits.causal) {
        const int seen = row + args.diagonal + 1;
        return seen < args.k_len ? seen : args.k_len;
    } else {
        return args.k_len;
    }
}

// `first_row` is the warp's, `first_key` the step's first.
template <class Kernel>
FS_DEVICE void mask_step(typename Kernel::S& s, const ForwardArgs& args, int first_row,
                         int first_key) {
    const int lane = threadIdx.x % kWarpLanes;
    FS_UNROLL
    for (int i = 0; i < Kernel::kRowTiles; ++i) {
        FS_UNROLL
        for (int half = 0; half < 2; ++half) {
            const int row = first_row + i * kMatrixSpan + half * 8 + lane / 4;
            // Counted from this thread's first column, so that what follows compares constants.
            const int visible = visible_keys<Kernel>(args, row) - first_key - lane % 4 * 2;
            FS_UNROLL
            for (int n = 0; n < 2 * Kernel::kStepSpans; ++n) {
                FS_UNROLL
                for (int e = 0; e < 2; ++e) {
                    float& x = s.at[i][n][2 * half + e];
                    x = n * 8 + e < visible ? x : kNegativeInfinity;
                }
            }
        }
    }
}

}  // namespace flashsmith
