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

}  // namespace flashsmith::ptx
