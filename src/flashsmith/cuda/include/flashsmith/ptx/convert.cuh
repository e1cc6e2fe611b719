// cvt: two fp32 numbers to one register of two 16-bit ones, rounded to nearest even.
//
// PTX ISA "Data Movement and Conversion Instructions: cvt". sm_80 and later.
#pragma once

#include "flashsmith/base/dtype.cuh"
#include "flashsmith/base/types.cuh"

namespace flashsmith::ptx {

FS_DEVICE u32 cvt_rn_f16x2(float low, float high) {
    u32 packed;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
}

FS_DEVICE u32 cvt_rn_bf16x2(float low, float high) {
    u32 packed;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
}

template <DType kDType>
FS_DEVICE u32 pack2(float low, float high) {
    return kDType == DType::kFP16 ? cvt_rn_f16x2(low, high) : cvt_rn_bf16x2(low, high);
}

FS_DEVICE float cvt_f32_f16(u16 x) {
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
    return y;
}

// The two numbers of a register; bf16 is the upper half of fp32.
template <DType kDType>
FS_DEVICE void unpack2(float& low, float& high, u32 packed) {
    if constexpr (kDType == DType::kFP16) {
        low = cvt_f32_f16(static_cast<u16>(packed));
        high = cvt_f32_f16(static_cast<u16>(packed >> 16));
    } else {
        low = __builtin_bit_cast(float, packed << 16);
        high = __builtin_bit_cast(float, packed & 0xffff0000u);
    }
}

}  // namespace flashsmith::ptx
