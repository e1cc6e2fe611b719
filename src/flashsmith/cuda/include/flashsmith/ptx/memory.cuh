// ld and st: 16-byte vectors and single words between registers, shared and global memory.
//
// PTX ISA "Data Movement and Conversion Instructions: ld, st".
#pragma once

#include "flashsmith/base/types.cuh"
#include "flashsmith/ptx/cache_policy.cuh"

namespace flashsmith::ptx {

FS_DEVICE Chunk ld_global_16b(u64 src) {
    Chunk c;
    asm volatile("ld.global.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(c.word[0]), "=r"(c.word[1]), "=r"(c.word[2]), "=r"(c.word[3])
                 : "l"(src)
                 : "memory");
    return c;
}

FS_DEVICE void st_global_16b(u64 dst, const Chunk& c) {
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};"
                 :
                 : "l"(dst), "r"(c.word[0]), "r"(c.word[1]), "r"(c.word[2]), "r"(c.word[3])
                 : "memory");
}

// The same where `valid`; a predicate instead of a branch keeps the lanes of a warp together.
FS_DEVICE void st_global_16b_if(u64 dst, const Chunk& c, bool valid) {
    asm volatile(
        "{\n\t.reg .pred p;\n\tsetp.ne.u32 p, %5, 0;\n\t"
        "@p st.global.v4.b32 [%0], {%1, %2, %3, %4};\n\t}"
        :
        : "l"(dst), "r"(c.word[0]), "r"(c.word[1]), "r"(c.word[2]), "r"(c.word[3]),
          "r"(static_cast<u32>(valid))
        : "memory");
}

FS_DEVICE void st_global_f32_if(float* dst, float value, bool valid) {
    asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.u32 p, %2, 0;\n\t@p st.global.f32 [%0], %1;\n\t}"
                 :
                 : "l"(dst), "f"(value), "r"(static_cast<u32>(valid))
                 : "memory");
}

FS_DEVICE void st_global_f32(float* dst, float value) {
    asm volatile("st.global.f32 [%0], %1;" : : "l"(dst), "f"(value) : "memory");
}

FS_DEVICE float ld_global_f32(const float* src) {
    float x;
    asm volatile("ld.global.f32 %0, [%1];" : "=f"(x) : "l"(src) : "memory");
    return x;
}

FS_DEVICE i32 ld_global_i32(const i32* src) {
    i32 x;
    asm volatile("ld.global.s32 %0, [%1];" : "=r"(x) : "l"(src) : "memory");
    return x;
}

FS_DEVICE void ld_global_f32x2(float& first, float& second, const float* src) {
    asm volatile("ld.global.v2.f32 {%0, %1}, [%2];"
                 : "=f"(first), "=f"(second)
                 : "l"(src)
                 : "memory");
}

// Zeros, and no access, where it does not exist.
FS_DEVICE void ld_global_f32x2_or_zero(float& first, float& second, const float* src, bool exists) {
    first = second = 0.0f;
    asm volatile("{.reg .pred p; setp.ne.b32 p, %3, 0; @p ld.global.v2.f32 {%0, %1}, [%2];}"
                 : "+f"(first), "+f"(second)
                 : "l"(src), "r"(static_cast<u32>(exists))
                 : "memory");
}

FS_DEVICE void st_global_f32x2(float* dst, float first, float second) {
    asm volatile("st.global.v2.f32 [%0], {%1, %2};"
                 :
                 : "l"(dst), "f"(first), "f"(second)
                 : "memory");
}

FS_DEVICE void ld_global_f32x4(float (&dst)[4], const float* src) {
    asm volatile("ld.global.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(dst[0]), "=f"(dst[1]), "=f"(dst[2]), "=f"(dst[3])
                 : "l"(src)
                 : "memory");
}

// Zeros, and no access, where it does not exist.
FS_DEVICE void ld_global_f32x4_or_zero(float (&dst)[4], const float* src, bool exists) {
    dst[0] = dst[1] = dst[2] = dst[3] = 0.0f;
    asm volatile("{.reg .pred p; setp.ne.b32 p, %5, 0; @p ld.global.v4.f32 {%0, %1, %2, %3}, [%4];}"
                 : "+f"(dst[0]), "+f"(dst[1]), "+f"(dst[2]), "+f"(dst[3])
                 : "l"(src), "r"(static_cast<u32>(exists))
                 : "memory");
}

FS_DEVICE void st_global_f32x4(float* dst, const float (&src)[4]) {
    asm volatile("st.global.v4.f32 [%0], {%1, %2, %3, %4};"
                 :
                 : "l"(dst), "f"(src[0]), "f"(src[1]), "f"(src[2]), "f"(src[3])
                 : "memory");
}

// The same of what is read soon: L2 drops other bytes first. sm_80 and later.
FS_DEVICE void st_global_f32x4_kept(float* dst, const float (&src)[4]) {
    asm volatile("st.global.L2::cache_hint.v4.f32 [%0], {%1, %2, %3, %4}, %5;"
                 :
                 : "l"(dst), "f"(src[0]), "f"(src[1]), "f"(src[2]), "f"(src[3]), "l"(evict_last())
                 : "memory");
}

// The same where `valid`, without a branch.
FS_DEVICE void st_global_f32x4_if(u64 dst, float a, float b, float c, float d, bool valid) {
    asm volatile(
        "{\n\t.reg .pred p;\n\tsetp.ne.u32 p, %5, 0;\n\t"
        "@p st.global.v4.f32 [%0], {%1, %2, %3, %4};\n\t}"
        :
        : "l"(dst), "f"(a), "f"(b), "f"(c), "f"(d), "r"(static_cast<u32>(valid))
        : "memory");
}

FS_DEVICE void st_global_8b(u64 dst, u32 first, u32 second) {
    asm volatile("st.global.v2.b32 [%0], {%1, %2};"
                 :
                 : "l"(dst), "r"(first), "r"(second)
                 : "memory");
}

FS_DEVICE void ld_shared_f32x2(float& first, float& second, SmemAddr src) {
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
                 : "=f"(first), "=f"(second)
                 : "r"(src.value)
                 : "memory");
}

FS_DEVICE void st_shared_f32x2(SmemAddr dst, float first, float second) {
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};"
                 :
                 : "r"(dst.value), "f"(first), "f"(second)
                 : "memory");
}

FS_DEVICE void ld_shared_f32x4(float (&dst)[4], SmemAddr src) {
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(dst[0]), "=f"(dst[1]), "=f"(dst[2]), "=f"(dst[3])
                 : "r"(src.value)
                 : "memory");
}

FS_DEVICE Chunk ld_shared_16b(SmemAddr src) {
    Chunk c;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(c.word[0]), "=r"(c.word[1]), "=r"(c.word[2]), "=r"(c.word[3])
                 : "r"(src.value)
                 : "memory");
    return c;
}

FS_DEVICE void st_shared_16b(SmemAddr dst, const Chunk& c) {
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};"
                 :
                 : "r"(dst.value), "r"(c.word[0]), "r"(c.word[1]), "r"(c.word[2]), "r"(c.word[3])
                 : "memory");
}

FS_DEVICE void st_shared_f32x4(SmemAddr dst, float a, float b, float c, float d) {
    asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};"
                 :
                 : "r"(dst.value), "f"(a), "f"(b), "f"(c), "f"(d)
                 : "memory");
}

FS_DEVICE void st_shared_b32(SmemAddr dst, u32 word) {
    asm volatile("st.shared.b32 [%0], %1;" : : "r"(dst.value), "r"(word) : "memory");
}

}  // namespace flashsmith::ptx
