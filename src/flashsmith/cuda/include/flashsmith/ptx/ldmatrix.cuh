// ldmatrix: four 8x8 matrices of 16-bit elements from shared memory to the registers of a warp.
//
// PTX ISA "Warp Level Matrix Instructions: ldmatrix". sm_75 and later.
//
//   lane 8i..8i+7 give the addresses of the 8 rows (16 bytes each) of matrix i;
//   register i of lane l holds matrix i, row l / 4, columns 2 (l % 4) and 2 (l % 4) + 1.
#pragma once

#include "flashsmith/base/types.cuh"

namespace flashsmith::ptx {

FS_DEVICE void ldmatrix_x4(u32 (&dst)[4], SmemAddr row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(dst[0]), "=r"(dst[1]), "=r"(dst[2]), "=r"(dst[3])
                 : "r"(row.value)
                 : "memory");
}

// Each matrix arrives transposed.
FS_DEVICE void ldmatrix_x4_trans(u32 (&dst)[4], SmemAddr row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(dst[0]), "=r"(dst[1]), "=r"(dst[2]), "=r"(dst[3])
                 : "r"(row.value)
                 : "memory");
}

}  // namespace flashsmith::ptx
