// atom and red: what ctas of one launch tell each other through a word of global memory, and sums.
//
// PTX ISA "Parallel Synchronization and Communication Instructions: atom, red". sm_70 and later;
// sums of vectors from sm_90 on.
#pragma once

#include "flashsmith/base/types.cuh"

namespace flashsmith::ptx {

// Adds to a word and returns what it held. Who adds later sees what this thread did before, and
// this thread what those did who added earlier.
FS_DEVICE u32 atom_add_acq_rel_gpu(u32* word, u32 increment) {
    u32 before;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;"
                 : "=r"(before)
                 : "l"(word), "r"(increment)
                 : "memory");
    return before;
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
inline constexpr bool kHasVectorSums = true;
#else
inline constexpr bool kHasVectorSums = false;
#endif

// Adds a number to that at `dst`, in any order with other sums.
FS_DEVICE void red_add_f32(float* dst, float x) {
    asm volatile("red.global.add.f32 [%0], %1;" : : "l"(dst), "f"(x) : "memory");
}

// The same of four, at a multiple of 16 bytes.
FS_DEVICE void red_add_f32x4(float* dst, const float (&x)[4]) {
    asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};"
                 :
                 : "l"(dst), "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3])
                 : "memory");
}

}  // namespace flashsmith::ptx
