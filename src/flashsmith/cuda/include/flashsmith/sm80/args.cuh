// The run-time arguments of a forward kernel, as kernels/sm80_forward/plan.py packs them.
#pragma once

#include "flashsmith/base/tensor_arg.cuh"

namespace flashsmith {

struct ForwardArgs {
    TensorArg q, k, v, o;
    float* lse;  // (batch, heads, q_len) float32, contiguous; natural logarithm
    i32 batch;
    i32 heads;
    i32 kv_heads;  // divides heads
    i32 q_len;
    i32 k_len;
    i32 d_head;        // of the problem; at most the kernel's
    i32 diagonal;      // with causal, row i sees key j when j <= i + diagonal
    float scale_log2;  // softmax scale times log2(e)
};

static_assert(sizeof(ForwardArgs) == 168, "kernels/sm80_forward/plan.py packs 168 bytes.");

}  // namespace flashsmith
