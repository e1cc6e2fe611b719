// cp.async: copies from global to shared memory that do not pass through registers.
//
// PTX ISA "Data Movement and Conversion Instructions: cp.async". sm_80 and later.
#pragma once

#include "flashsmith/base/types.cuh"
#include "flashsmith/ptx/cache_policy.cuh"

namespace flashsmith::ptx {

// Starts a 16-byte copy; both addresses are 16-byte aligned.
// .cg skips L1: the tile is read back from shared memory only.
FS_DEVICE void cp_async_16b(SmemAddr dst, u64 src) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;"
                 :
                 : "r"(dst.value), "l"(src)
                 : "memory");
}

// The same where `valid`; else writes 16 zero bytes and does not read `src`.
FS_DEVICE void cp_async_16b_or_zero(SmemAddr dst, u64 src, bool valid) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;"
                 :
                 : "r"(dst.value), "l"(src), "r"(valid ? kChunkBytes : 0)
                 : "memory");
}

// Both of bytes that nobody reads again: L2 drops them before what it held.
FS_DEVICE void cp_async_16b_once(SmemAddr dst, u64 src) {
    asm volatile("cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1], 16, %2;"
                 :
                 : "r"(dst.value), "l"(src), "l"(evict_first())
                 : "memory");
}

FS_DEVICE void cp_async_16b_or_zero_once(SmemAddr dst, u64 src, bool valid) {
    asm volatile("cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1], 16, %2, %3;"
                 :
                 : "r"(dst.value), "l"(src), "r"(valid ? kChunkBytes : 0), "l"(evict_first())
                 : "memory");
}

// Closes the group of copies that this thread started since its last commit.
FS_DEVICE void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most `kPending` of this thread's newest groups are unfinished.
// Says nothing of other threads' copies: a barrier must follow before their bytes are read.
template <int kPending>
FS_DEVICE void cp_async_wait() {
    static_assert(kPending >= 0, "cp_async_wait: kPending counts groups, it cannot be negative.");
    asm volatile("cp.async.wait_group %0;" : : "n"(kPending) : "memory");
}

}  // namespace flashsmith::ptx
