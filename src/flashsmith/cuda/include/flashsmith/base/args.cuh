// The run-time arguments of a forward kernel, as runtime/launch packs them.
#pragma once

#include "flashsmith/base/types.cuh"

namespace flashsmith {

// A 4-D tensor; strides count elements, the stride along d_head is 1.
struct TensorArg {
    u64 address;
    i64 batch_stride;
    i64 seq_stride;
    i64 head_stride;
};

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

static_assert(sizeof(TensorArg) == 32, "runtime/launch packs a tensor as four 8-byte words.");
static_assert(sizeof(ForwardArgs) == 168, "runtime/launch packs the arguments as 168 bytes.");

}  // namespace flashsmith
