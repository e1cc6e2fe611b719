// The run-time arguments of a Hopper forward kernel, as kernels/sm90_forward/plan.py packs them.
#pragma once

#include "flashsmith/base/tensor_arg.cuh"

namespace flashsmith {

struct HopperForwardArgs {
    TensorMap q, k, v, o;  // dimensions d_head, rows, heads, batch
    TensorArg o_direct;    // for kernels that store O from registers
    float* lse;            // (batch, heads, q_len) float32, contiguous; natural logarithm
    u32* counter;          // tiles drawn, blocks that are done, parts given; zero between launches
    i32 heads;
    i32 kv_group;  // query heads that share one head of K and V
    i32 q_len;
    i32 k_len;
    i32 d_head;         // of the problem; at most the kernel's
    i32 diagonal;       // with causal, row i sees key j when j <= i + diagonal
    float scale_log2;   // softmax scale times log2(e)
    i32 batch_heads;    // batch * heads
    i32 q_tiles;        // tiles of one head, counted in whole clusters
    i32 tiles;          // q_tiles * batch_heads
    i32 section_heads;  // heads whose K and V stay in L2 together
    i32 short_tiles;    // of each head, left to the end: they even out when blocks finish
    i32 early_heads;    // the first ones, whose short tiles are not left to the end
    i32 whole_tiles;    // the first ones; the others may be split along the keys
    i32 split_ranges;   // into so many ranges
    i32 split_blocks;   // that have so many blocks of keys together
};

// Behind the counters and flags come the parts of O that blocks give to each other.
inline constexpr int kCounterBytes = 16384;
inline constexpr int kFirstFlag = 2;

static_assert(sizeof(HopperForwardArgs) == 640, "kernels/sm90_forward/plan.py packs 640 bytes.");

}  // namespace flashsmith
