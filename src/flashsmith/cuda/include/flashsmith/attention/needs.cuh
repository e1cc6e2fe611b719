// What a kernel computes, as far as it is fixed at compile time: the mirror of problem/needs.py.
#pragma once

#include "flashsmith/base/dtype.cuh"

namespace flashsmith {

// Each false removes code that the problem does not need.
struct ForwardTraits {
    bool causal = required<bool>();    // mask keys right of the diagonal
    bool ragged_q = required<bool>();  // query length is no multiple of the query tile
    bool ragged_k = required<bool>();  // key length is no multiple of the key tile
    bool narrow_d = required<bool>();  // the problem's d_head is below the kernel's
    bool lse = required<bool>();       // write the log-sum-exp of every row
};

}  // namespace flashsmith
