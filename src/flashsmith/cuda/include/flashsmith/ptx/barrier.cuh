// bar: the barrier of all threads of a block, and the addresses it protects.
//
// PTX ISA "Parallel Synchronization and Communication Instructions: bar".
#pragma once

#include "flashsmith/base/types.cuh"

namespace flashsmith::ptx {

// All threads of the block arrive; what each wrote to shared memory before is seen by all after.
FS_DEVICE void bar_sync() { asm volatile("bar.sync 0;" ::: "memory"); }

// The lanes of a warp meet; what each wrote to shared memory before is seen by all after.
FS_DEVICE void bar_warp_sync() { asm volatile("bar.warp.sync 0xffffffff;" ::: "memory"); }

}  // namespace flashsmith::ptx
