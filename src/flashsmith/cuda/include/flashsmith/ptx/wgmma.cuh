// wgmma: products of 64 rows by a warpgroup, run by the tensor cores while its threads go on.
//
// PTX ISA "Asynchronous Warpgroup Level Matrix Instructions". sm_90a.
//
// Accumulators of m64nN: register 4j + 2i + c of thread t holds row 16 (t / 32) + (t % 32) / 4 +
// 8i, column 8j + 2 (t % 4) + c. The A operand of k-step i is packed accumulators 8i .. 8i + 7, so
// P needs no movement between lanes.
#pragma once

#include "flashsmith/base/dtype.cuh"
#include "flashsmith/base/types.cuh"

namespace flashsmith::ptx {

// Instructions of width kN: `ss` takes A from shared memory, `rs` from registers.
template <DType kDType, int kN>
struct Wgmma;

// Registers that ordinary instructions touched may be read or written by wgmma after this.
FS_DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

// Closes the group of products issued since the last commit.
FS_DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// At most kPending of the newest groups still run: the results and operands of older ones are free.
template <int kPending>
FS_DEVICE void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" : : "n"(kPending) : "memory");
}

// Pins accumulators to this place: the compiler knows nothing of products that still write them.
template <int kCount>
FS_DEVICE void fence_registers(float (&registers)[kCount]) {
    FS_UNROLL
    for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(registers[i])::"memory");
}

// A matrix descriptor of 128-byte swizzled panels. Only its low word varies: the address in units
// of 16 bytes and, for an operand whose rows are the contraction, the stride from one panel of 64
// columns to the next. It is kept apart so that advancing it is one 32-bit addition.
struct MatrixDescriptor {
    u32 low;

    // Stride of 1024 bytes between groups of 8 rows, swizzle mode 1 (128 bytes).
    static constexpr u32 kHigh = (1u << 30) | (1024 >> 4);

    static FS_DEVICE MatrixDescriptor of(SmemAddr address, u32 panel_bytes) {
        return {((address.value & 0x3ffff) >> 4) | ((panel_bytes >> 4) << 16)};
    }
    FS_DEVICE MatrixDescriptor operator+(u32 bytes) const { return {low + (bytes >> 4)}; }
    FS_DEVICE u64 word() const { return (static_cast<u64>(kHigh) << 32) | low; }
};

}  // namespace flashsmith::ptx
