// Special registers, read anew at every call.
//
// PTX ISA "Special Registers". Being volatile, a second read is not merged with the first: what is
// derived from it need not stay in a register in between.
#pragma once

#include "flashsmith/base/types.cuh"

namespace flashsmith::ptx {

// The number of this block of threads, along each dimension of the grid.
FS_DEVICE u32 ctaid_x() {
    u32 index;
    asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(index));
    return index;
}
FS_DEVICE u32 ctaid_y() {
    u32 index;
    asm volatile("mov.u32 %0, %%ctaid.y;" : "=r"(index));
    return index;
}
FS_DEVICE u32 ctaid_z() {
    u32 index;
    asm volatile("mov.u32 %0, %%ctaid.z;" : "=r"(index));
    return index;
}

// How many blocks of threads there are.
FS_DEVICE u32 nctaid_x() {
    u32 count;
    asm volatile("mov.u32 %0, %%nctaid.x;" : "=r"(count));
    return count;
}

}  // namespace flashsmith::ptx
