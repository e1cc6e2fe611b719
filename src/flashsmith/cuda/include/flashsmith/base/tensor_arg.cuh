// Where a tensor lies, as a kernel is told: by address and strides, or by a TMA tensor map.
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

// A tensor with an element a score; strides may be 0.
struct ScoresArg {
    u64 address;
    i64 batch_stride;
    i64 row_stride;
    i64 head_stride;
    i64 key_stride;
};

// A TMA tensor map as the driver encodes it: opaque.
struct alignas(64) TensorMap {
    u64 word[16];
};

static_assert(sizeof(TensorArg) == 32, "the host packs a tensor as four 8-byte words.");
static_assert(sizeof(ScoresArg) == 40, "the host packs it as five 8-byte words.");
static_assert(sizeof(TensorMap) == 128, "the driver encodes a tensor map in 128 bytes.");

}  // namespace flashsmith
