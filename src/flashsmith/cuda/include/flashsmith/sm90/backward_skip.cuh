// A step that a warpgroup leaves out: the q tile stands wholly before its keys, which the other
// warpgroup's first rows still see. With `masks_first`, at d_head 128, that is a block's first step
// for the second warpgroup under a causal mask.
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
    // How many steps of a block that has `left` were left out: one or none.
    static FS_DEVICE i32 skip(Consumer& c, i32 left) {
        if constexpr (!Consumer::kConfig.masks_first || !Consumer::Mask::kHides ||
                      Consumer::kHalves == 2) {
            return 0;  // with 128 rows a q tile stands before no warpgroup's keys
        } else {
            const i32 key = c.first_key + c.warpgroup * kWarpgroupRows;
            const i32 row_end = (c.q_tile + 1) * Consumer::kRows;
            if (left == 1 || Consumer::Mask::first_row_of(c.args, key) < row_end) return 0;
            leave_out(c);
            return 1;
        }
    }

  private:
    // dS is zero, for the other warpgroup's dQ. Q and dO are waited for all the same: released
    // earlier, their stages would be released twice.
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
