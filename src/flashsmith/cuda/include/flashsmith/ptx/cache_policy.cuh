// How long L2 keeps a line: 64-bit policies that loads and stores take as an operand.
//
// PTX ISA "createpolicy": encoded as createpolicy.fractional does with fraction 1.
#pragma once

#include "flashsmith/base/types.cuh"

namespace flashsmith::ptx {

inline constexpr u64 kEvictNormal = 0x1000000000000000;
inline constexpr u64 kEvictFirst = 0x12F0000000000000;
inline constexpr u64 kEvictLast = 0x14F0000000000000;

// kEvictFirst as every architecture encodes it; sm_80 and later.
FS_DEVICE u64 evict_first() {
    u64 policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0;" : "=l"(policy));
    return policy;
}

// kEvictLast in the same way.
FS_DEVICE u64 evict_last() {
    u64 policy;
    asm("createpolicy.fractional.L2::evict_last.b64 %0;" : "=l"(policy));
    return policy;
}

// Drops 128 bytes, aligned to as many, that nobody reads before they are written again: L2 forgets
// what it has not yet written to memory. What they hold is not known after this. sm_80 and later.
FS_DEVICE void discard_128b(const float* line) {
    asm volatile("discard.global.L2 [%0], 128;" : : "l"(line) : "memory");
}

}  // namespace flashsmith::ptx
