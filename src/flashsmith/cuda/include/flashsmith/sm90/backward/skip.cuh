// A step that a warpgroup leaves out: no row of the q tile sees any of its keys, while some rows
// still see keys of the other warpgroup. With `masks_first`, at d_head 128, that is the second
// warpgroup's first step of a kv block under a causal mask.
//
//   keys →      warpgroup 0   warpgroup 1
//   q tile 0     \ . . .       . . . .       warpgroup 1 leaves it out
//   q tile 1     x x x x       \ . . .
//   q tile 2     x x x x       x x x x       no key is hidden from here on
#pragma once

#include "flashsmith/ptx/mbarrier.cuh"
#include "flashsmith/ptx/stmatrix.cuh"
#include "flashsmith/tile/panel.cuh"

namespace flashsmith::sm90 {

template <class Consumer>
struct HiddenStep {
    // Leaves out the first of the kv block's `left` steps if it may; returns how many: 1 or 0.
    static FS_DEVICE i32 skip(Consumer& c, i32 left) {
        if constexpr (!Consumer::kConfig.masks_first || !Consumer::Mask::kHides ||
                      Consumer::kHalves == 2) {
            return 0;  // a q tile of 128 rows never lies wholly before a warpgroup's keys
        } else {
            const i32 key = c.first_key + c.warpgroup * kWarpgroupRows;
            const i32 row_end = (c.q_tile + 1) * Consumer::kRows;
            if (left == 1 || Consumer::Mask::first_row_of(c.args, key) < row_end) return 0;
            leave_out(c);
            return 1;
        }
    }

  private:
    // Stores zeros as dS, which the other warpgroup's dQ reads. It waits for Q and dO even so:
    // their stages would be released twice if it released them earlier.
    static FS_DEVICE void leave_out(Consumer& c) {
        using Plan = typename Consumer::Plan;
        ptx::mbarrier_wait(Plan::q_full(c.stage()), c.parity());
        ptx::mbarrier_wait(Plan::d_o_full(c.stage()), c.parity());
        ptx::mbarrier_wait(Plan::ds_empty(c.ds_stage), c.ds_parity ^ 1);  // dQ from it is complete
        constexpr u32 kZeros[4] = {0, 0, 0, 0};
        FS_UNROLL
        for (int j = 0; j < Consumer::kRows / 16; ++j) {
            ptx::stmatrix_x4(c.ds_address(j), kZeros);
        }
        Consumer::Turns::take(c.warpgroup);
        Consumer::Turns::pass(c.warpgroup);
        c.publish_ds();
        c.arrive(Plan::q_empty(c.stage()));
        c.arrive(Plan::d_o_empty(c.stage()));
        c.end_step();
        ++c.q_tile;
        c.has_dq = c.adds;
    }
};

}  // namespace flashsmith::sm90
