// What warpgroups do as a whole: named barriers, register counts, and stores without a branch.
//
// PTX ISA "bar", "setmaxnreg", "st". sm_90.
#pragma once

#include "flashsmith/base/types.cuh"
#include "flashsmith/ptx/cache_policy.cuh"
#include "flashsmith/ptx/memory.cuh"

namespace flashsmith::ptx {

// `threads` threads, arriving or waiting, have met at hardware barrier `id`.
FS_DEVICE void bar_sync_named(u32 id, u32 threads) {
    asm volatile("bar.sync %0, %1;" : : "r"(id), "r"(threads) : "memory");
}

// Counts as having met, and goes on.
FS_DEVICE void bar_arrive_named(u32 id, u32 threads) {
    asm volatile("bar.arrive %0, %1;" : : "r"(id), "r"(threads) : "memory");
}

template <int kRegisters>
FS_DEVICE void setmaxnreg_dec() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" : : "n"(kRegisters));
}

// Blocks until other warpgroups have given back enough registers.
template <int kRegisters>
FS_DEVICE void setmaxnreg_inc() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" : : "n"(kRegisters));
}

// The larger of each of two pairs of signed 16-bit integers.
FS_DEVICE u32 max_s16x2(u32 a, u32 b) {
    u32 c;
    asm("max.s16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
    return c;
}

// A number's pattern, and back.
FS_DEVICE i32 bits(float value) {
    i32 pattern;
    asm("mov.b32 %0, %1;" : "=r"(pattern) : "f"(value));
    return pattern;
}
FS_DEVICE float number(i32 pattern) {
    float value;
    asm("mov.b32 %0, %1;" : "=f"(value) : "r"(pattern));
    return value;
}

// The value of lane 0: ptxas then knows that it is the same in the whole warp.
FS_DEVICE i32 broadcast(i32 value) {
    i32 first;
    asm volatile("shfl.sync.idx.b32 %0, %1, 0, 0x1f, 0xffffffff;" : "=r"(first) : "r"(value));
    return first;
}

template <u64 kPolicy>
FS_DEVICE void st_global_16b_if(u64 dst, const Chunk& c, bool valid) {
    if constexpr (kPolicy == kEvictNormal) {
        st_global_16b_if(dst, c, valid);
    } else {
        asm volatile(
            "{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %5, 0;\n\t"
            "@p st.global.L2::cache_hint.v4.b32 [%0], {%1, %2, %3, %4}, %6;\n\t}"
            :
            : "l"(dst), "r"(c.word[0]), "r"(c.word[1]), "r"(c.word[2]), "r"(c.word[3]),
              "r"(static_cast<u32>(valid)), "l"(kPolicy)
            : "memory");
    }
}

// The counter's value before `increment` was added.
FS_DEVICE u32 atom_add_u32(u32* counter, u32 increment) {
    u32 before;
    asm volatile("atom.global.add.u32 %0, [%1], %2;"
                 : "=r"(before)
                 : "l"(counter), "r"(increment)
                 : "memory");
    return before;
}

// Adds to a word; who reads the sum with `acquire` sees what this warp's lanes did before.
FS_DEVICE void red_release_gpu_if(bool condition, u32* word, u32 increment) {
    asm volatile(
        "{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %0, 0;\n\t"
        "@p red.release.gpu.global.add.u32 [%1], %2;\n\t}"
        :
        : "r"(static_cast<u32>(condition)), "l"(word), "r"(increment)
        : "memory");
}

// Until a word that other blocks add to has reached `value`.
FS_DEVICE void wait_acquire_gpu(const u32* word, u32 value) {
    u32 now;
    do {
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(word) : "memory");
    } while (static_cast<u32>(broadcast(static_cast<i32>(now))) != value);
}

FS_DEVICE void st_global_u32_if(bool condition, u32* dst, u32 value) {
    asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %0, 0;\n\t@p st.global.u32 [%1], %2;\n\t}"
                 :
                 : "r"(static_cast<u32>(condition)), "l"(dst), "r"(value)
                 : "memory");
}

// What this thread did to global memory before is seen by any thread that sees what it does after.
FS_DEVICE void fence_gpu() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }

}  // namespace flashsmith::ptx
