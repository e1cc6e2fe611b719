// fp32 arithmetic whose rounding is fixed here, so that ptxas cannot contract it in its own way.
//
// PTX ISA "Floating Point Instructions". ex2 and lg2 are approximations of 2^-22 or better.
#pragma once

#include "flashsmith/base/types.cuh"

namespace flashsmith::ptx {

// 2 to the power x; subnormal results are flushed to zero.
FS_DEVICE float ex2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

FS_DEVICE float lg2(float x) {
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

FS_DEVICE float rcp(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

FS_DEVICE float fma_rn(float a, float b, float c) {
    float d;
    asm("fma.rn.f32 %0, %1, %2, %3;" : "=f"(d) : "f"(a), "f"(b), "f"(c));
    return d;
}

FS_DEVICE float mul_rn(float a, float b) {
    float c;
    asm("mul.rn.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
    return c;
}

FS_DEVICE float add_rn(float a, float b) {
    float c;
    asm("add.rn.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
    return c;
}

FS_DEVICE float sub_rn(float a, float b) {
    float c;
    asm("sub.rn.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
    return c;
}

// The larger one; the other one where one is NaN.
FS_DEVICE float max(float a, float b) {
    float c;
    asm("max.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
    return c;
}

// The smaller one; the other one where one is NaN.
FS_DEVICE float min(float a, float b) {
    float c;
    asm("min.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
    return c;
}

FS_DEVICE float abs(float x) {
    float y;
    asm("abs.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// `value` with the sign of `of`.
FS_DEVICE float with_sign(float value, float of) {
    constexpr u32 kSign = 0x80000000;
    return __builtin_bit_cast(
        float, (__builtin_bit_cast(u32, value) & ~kSign) | (__builtin_bit_cast(u32, of) & kSign));
}

}  // namespace flashsmith::ptx
