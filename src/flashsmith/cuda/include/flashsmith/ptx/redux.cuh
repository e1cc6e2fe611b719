// redux.sync: one number of all lanes of a warp.
//
// PTX ISA "Parallel Synchronization: redux.sync". sm_80 and later.
#pragma once

#include "flashsmith/base/types.cuh"

namespace flashsmith::ptx {

// The largest value of all lanes; the same in all lanes.
FS_DEVICE i32 redux_max(i32 value) {
    i32 largest;
    asm volatile("redux.sync.max.s32 %0, %1, 0xffffffff;" : "=r"(largest) : "r"(value));
    return largest;
}

// The sum of all lanes' values; the same in all lanes.
FS_DEVICE i32 redux_add(i32 value) {
    i32 sum;
    asm volatile("redux.sync.add.s32 %0, %1, 0xffffffff;" : "=r"(sum) : "r"(value));
    return sum;
}

}  // namespace flashsmith::ptx
