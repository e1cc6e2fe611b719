// mma.sync m16n8k16: D = A B + C of one warp, 16-bit inputs, fp32 accumulators.
//
// PTX ISA "Warp Level Matrix Instructions: mma", "Matrix Fragments for mma.m16n8k16". sm_80 on.
//
//   lane l, g = l / 4, t = l % 4:
//   A (16 x 16): a0 row g cols 2t,2t+1 | a1 row g+8 | a2 row g cols 2t+8.. | a3 row g+8 cols 2t+8..
//   B (16 x 8):  b0 rows 2t,2t+1 col g | b1 rows 2t+8.. col g
//   C, D (16 x 8):  d0,d1 row g cols 2t,2t+1 | d2,d3 row g+8
#pragma once

#include "flashsmith/base/dtype.cuh"
#include "flashsmith/base/types.cuh"

namespace flashsmith::ptx {

FS_DEVICE void mma_m16n8k16_fp16(float (&d)[4], const u32 (&a)[4], const u32* b,
                                 const float (&c)[4]) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(c[0]), "f"(c[1]),
          "f"(c[2]), "f"(c[3]));
}

FS_DEVICE void mma_m16n8k16_bf16(float (&d)[4], const u32 (&a)[4], const u32* b,
                                 const float (&c)[4]) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(c[0]), "f"(c[1]),
          "f"(c[2]), "f"(c[3]));
}

template <DType kDType>
FS_DEVICE void mma_m16n8k16(float (&d)[4], const u32 (&a)[4], const u32* b, const float (&c)[4]) {
    if constexpr (kDType == DType::kFP16) {
        mma_m16n8k16_fp16(d, a, b, c);
    } else {
        mma_m16n8k16_bf16(d, a, b, c);
    }
}

}  // namespace flashsmith::ptx
