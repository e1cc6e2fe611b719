// The words every header uses: sized integers, shared-memory addresses, and the two macros.
#pragma once

#define FS_DEVICE __device__ __forceinline__
#define FS_UNROLL _Pragma("unroll")

namespace flashsmith {

using i32 = int;
using i64 = long long;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;

static_assert(sizeof(i32) == 4 && sizeof(i64) == 8, "the integer names must state their size.");

// Bytes of one element of Q, K, V and O: fp16 and bf16 alike.
inline constexpr int kElementBytes = 2;

// One 16-byte vector of elements: what a copy instruction moves for one thread.
inline constexpr int kChunkBytes = 16;
inline constexpr int kChunkElements = kChunkBytes / kElementBytes;

inline constexpr int kWarpLanes = 32;

inline constexpr float kLn2 = 0.6931471805599453f;
inline constexpr float kLog2E = 1.4426950408889634f;
inline constexpr float kNegativeInfinity = __builtin_bit_cast(float, 0xff800000u);

// An address in the shared window: neither an integer nor a pointer, so it cannot be mixed up.
struct SmemAddr {
    u32 value;

    FS_DEVICE SmemAddr operator+(u32 bytes) const { return {value + bytes}; }
};

// Four registers of 32 bits: one 16-byte vector.
struct alignas(16) Chunk {
    u32 word[4];
};

}  // namespace flashsmith
