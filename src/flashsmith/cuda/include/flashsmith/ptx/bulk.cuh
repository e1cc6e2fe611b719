// cp.async.bulk without a tensor map, and sums into global memory: rows of bytes, moved by one
// thread, or added from registers.
//
// PTX ISA "Data Movement and Conversion Instructions: cp.async.bulk, cp.reduce.async.bulk, red".
// sm_90. Addresses and sizes are multiples of 16 bytes.
#pragma once

#include "flashsmith/base/types.cuh"

namespace flashsmith::ptx {

// Starts the copy of `bytes` bytes to `dst`; they complete on `full`.
FS_DEVICE void bulk_load(SmemAddr dst, u64 src, u32 bytes, SmemAddr full) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
        :
        : "r"(dst.value), "l"(src), "r"(bytes), "r"(full.value)
        : "memory");
}

// Starts a copy from shared memory, in this thread's bulk group.
FS_DEVICE void bulk_store(u64 dst, SmemAddr src, u32 bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;"
                 :
                 : "l"(dst), "r"(src.value), "r"(bytes)
                 : "memory");
}

// The same, added to the float32 numbers that lie there.
FS_DEVICE void bulk_add_f32_if(bool condition, u64 dst, SmemAddr src, u32 bytes) {
    asm volatile(
        "{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %3, 0;\n\t"
        "@p cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;\n\t}"
        :
        : "l"(dst), "r"(src.value), "r"(bytes), "r"(static_cast<u32>(condition))
        : "memory");
}

// Adds four numbers to those at `dst`, in any order with other sums.
FS_DEVICE void red_add_f32x4_if(bool condition, u64 dst, float a, float b, float c, float d) {
    asm volatile(
        "{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %5, 0;\n\t"
        "@p red.global.add.v4.f32 [%0], {%1, %2, %3, %4};\n\t}"
        :
        : "l"(dst), "f"(a), "f"(b), "f"(c), "f"(d), "r"(static_cast<u32>(condition))
        : "memory");
}

// Global memory that bulk copies of this thread have written, and what it does after, is in order
// for others that take up its next release.
FS_DEVICE void fence_proxy_async_global() {
    asm volatile("fence.proxy.async.global;" ::: "memory");
}

// A word that another block writes; what that block did before its release is seen after this.
FS_DEVICE u32 ld_acquire_gpu(const u32* word) {
    u32 now;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(word) : "memory");
    return now;
}

// The same where `condition`, without a branch; else 0.
FS_DEVICE u32 ld_acquire_gpu_if(bool condition, const u32* word) {
    u32 now;
    asm volatile(
        "{\n\t.reg .pred p;\n\tsetp.ne.u32 p, %2, 0;\n\tmov.u32 %0, 0;\n\t"
        "@p ld.acquire.gpu.global.u32 %0, [%1];\n\t}"
        : "=r"(now)
        : "l"(word), "r"(static_cast<u32>(condition))
        : "memory");
    return now;
}

// Until the word is at least `value`; one lane of a warp may ask alone.
FS_DEVICE void wait_at_least_acquire_gpu(const u32* word, u32 value) {
    while (ld_acquire_gpu(word) < value) {
    }
}

// Who reads the value with `acquire` sees what this thread did before.
FS_DEVICE void st_release_gpu(u32* word, u32 value) {
    asm volatile("st.release.gpu.global.u32 [%0], %1;" : : "l"(word), "r"(value) : "memory");
}

// The same where `condition`, without a branch; of what other lanes did, a barrier of the warp must
// stand before it.
FS_DEVICE void st_release_gpu_if(bool condition, u32* word, u32 value) {
    asm volatile(
        "{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %2, 0;\n\t"
        "@p st.release.gpu.global.u32 [%0], %1;\n\t}"
        :
        : "l"(word), "r"(value), "r"(static_cast<u32>(condition))
        : "memory");
}

}  // namespace flashsmith::ptx
