// stmatrix: four 8x8 matrices of 16-bit elements from the registers of a warp to shared memory.
//
// PTX ISA "Warp Level Matrix Instructions: stmatrix". sm_90.
// Lanes 8i..8i+7 give the addresses of the rows of matrix i; fragments are as ldmatrix gives them.
#pragma once

#include "flashsmith/base/types.cuh"

namespace flashsmith::ptx {

FS_DEVICE void stmatrix_x4(SmemAddr row, const u32 (&src)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
                 :
                 : "r"(row.value), "r"(src[0]), "r"(src[1]), "r"(src[2]), "r"(src[3])
                 : "memory");
}

}  // namespace flashsmith::ptx
