// atom: what CTAs of one launch tell each other through a word of global memory.
//
// PTX ISA "Parallel Synchronization and Communication Instructions: atom". sm_70 and later.
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

}  // namespace flashsmith::ptx
