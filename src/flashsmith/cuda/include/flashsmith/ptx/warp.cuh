// shfl.sync and vote.sync: what the lanes of one warp tell each other.
//
// PTX ISA "Data Movement: shfl.sync", "Parallel Synchronization: vote.sync". sm_70 and later.
#pragma once

#include "flashsmith/base/types.cuh"

namespace flashsmith::ptx {

// The value of the lane whose number differs in the bits of `mask`.
FS_DEVICE float shfl_bfly(float value, u32 mask) {
    float other;
    asm volatile("shfl.sync.bfly.b32 %0, %1, %2, 0x1f, 0xffffffff;"
                 : "=f"(other)
                 : "f"(value), "r"(mask));
    return other;
}

FS_DEVICE u32 shfl_bfly_b32(u32 value, u32 mask) {
    u32 other;
    asm volatile("shfl.sync.bfly.b32 %0, %1, %2, 0x1f, 0xffffffff;"
                 : "=r"(other)
                 : "r"(value), "r"(mask));
    return other;
}

// The value of the lane `distance` before; of the first lanes, their own.
FS_DEVICE i32 shfl_up(i32 value, u32 distance) {
    i32 other;
    asm volatile("shfl.sync.up.b32 %0, %1, %2, 0, 0xffffffff;"
                 : "=r"(other)
                 : "r"(value), "r"(distance));
    return other;
}

// The value of one lane.
FS_DEVICE i32 shfl_idx(i32 value, u32 lane) {
    i32 other;
    asm volatile("shfl.sync.idx.b32 %0, %1, %2, 0x1f, 0xffffffff;"
                 : "=r"(other)
                 : "r"(value), "r"(lane));
    return other;
}

// A bit for every lane that says true; the same in all lanes.
FS_DEVICE u32 vote_ballot(bool value) {
    u32 lanes;
    asm volatile(
        "{\n\t.reg .pred p;\n\tsetp.ne.u32 p, %1, 0;\n\tvote.sync.ballot.b32 %0, p, "
        "0xffffffff;\n\t}"
        : "=r"(lanes)
        : "r"(static_cast<u32>(value)));
    return lanes;
}

// Whether any lane of the warp says true; the same in all lanes.
FS_DEVICE bool vote_any(bool value) {
    u32 any;
    asm volatile(
        "{\n\t.reg .pred p;\n\tsetp.ne.u32 p, %1, 0;\n\tvote.sync.any.pred p, p, 0xffffffff;\n\t"
        "selp.u32 %0, 1, 0, p;\n\t}"
        : "=r"(any)
        : "r"(static_cast<u32>(value)));
    return any != 0;
}

// Whether any of the four lanes of a quad, which share a row of an accumulator, says true.
FS_DEVICE bool any_of_quad(bool value) {
    u32 lanes;
    asm volatile(
        "{\n\t.reg .pred p;\n\tsetp.ne.u32 p, %1, 0;\n\tvote.sync.ballot.b32 %0, p, "
        "0xffffffff;\n\t}"
        : "=r"(lanes)
        : "r"(static_cast<u32>(value)));
    return (lanes >> (threadIdx.x & 28u) & 15u) != 0;
}

// Word j of lane i of a quad becomes word i of lane j.
FS_DEVICE void transpose_quad(u32 (&word)[4], int lane) {
    FS_UNROLL
    for (int bit = 1; bit <= 2; bit *= 2) {
        const bool upper = lane & bit;
        FS_UNROLL
        for (int pair = 0; pair < 2; ++pair) {
            const int low = bit == 1 ? 2 * pair : pair, high = low + bit;
            const u32 other = shfl_bfly_b32(upper ? word[low] : word[high], bit);
            word[low] = upper ? other : word[low];
            word[high] = upper ? word[high] : other;
        }
    }
}

}  // namespace flashsmith::ptx
