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

}  // namespace flashsmith::ptx
