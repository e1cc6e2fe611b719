// Where everything lies in a block's shared memory.
#pragma once

#include "flashsmith/base/types.cuh"

namespace flashsmith::sm80 {

template <FlashForwardKernelConfig kConfig>
struct alignas(1024) SharedPlan {
    u16 q[kConfig.B_r * kConfig.d_head];  // O is staged here at the end
    u16 k[kConfig.B_c * kConfig.d_head];
    u16 v[kConfig.B_c * kConfig.v_cols()];
};

}  // namespace flashsmith::sm80
