// How ctas that share a q tile, each with a slice of its keys, bring O together: through global
// memory.
#pragma once

#include "flashsmith/ptx/barrier.cuh"
#include "flashsmith/ptx/cluster.cuh"
#include "flashsmith/ptx/math.cuh"
#include "flashsmith/ptx/memory.cuh"
#include "flashsmith/ptx/warpgroup.cuh"

namespace flashsmith::sm90 {

// Each range gives at most one slice away, so its number is the slice's place. Threads of the same
// number hold the same elements, and the four words of one lie beside those of the next.
// kSliced: a range is one slice, and the next one of the same tile comes `tiles` ranges later; what
// is given lies in memory of the call.
template <int kD, int kWarpgroups, int kCluster, bool kSliced>
struct SliceExchange {
    static constexpr int kCount = kD / 2;  // of O, a thread
    static constexpr int kStride = kWarpgroupThreads * 16;
    static constexpr int kPartBytes = (kCount / 4 + 1) * kStride;
    static constexpr u32 kWarps = 4;

    u32* const& counter;  // of the kernel's arguments; flags and slices lie behind it
    const u64& scratch;
    const i32& tiles;
    int warpgroup, thread;

    FS_DEVICE void give(i32 range, const float (&o)[kCount], const float (&sums)[2],
                        const float (&maxima)[2]) const {
        u64 dst = part(range);
        FS_UNROLL
        for (int i = 0; i < kCount; i += 4) {
            put(dst, o[i], o[i + 1], o[i + 2], o[i + 3]);
            dst += kStride;
        }
        put(dst, sums[0], sums[1], maxima[0], maxima[1]);
        ptx::bar_warp_sync();
        ptx::red_release_gpu_if(thread % kWarpLanes == 0, flag(range), 1);
    }

    // Adds those of the `givers` ranges before, the nearest first: always in the same order.
    FS_DEVICE void take(i32 range, i32 givers, float (&o)[kCount], float (&sums)[2],
                        float (&maxima)[2]) const {
        const i32 step = kSliced ? tiles : 1;
        _Pragma("unroll 1") for (i32 giver = range - step; giver >= range - givers * step;
                                 giver -= step) {
            ptx::wait_acquire_gpu(flag(giver), kWarps);
            u64 src = part(giver);
            const Chunk statistics = ptx::ld_global_16b(src + kPartBytes - kStride);
            float mine[2], theirs[2];
            FS_UNROLL
            for (int i = 0; i < 2; ++i) {
                const float m = number(statistics, 2 + i), top = ptx::max(maxima[i], m);
                mine[i] = ptx::ex2(maxima[i] - top);
                theirs[i] = ptx::ex2(m - top);
                sums[i] = sums[i] * mine[i] + number(statistics, i) * theirs[i];
                maxima[i] = top;
            }
            FS_UNROLL
            for (int i = 0; i < kCount; i += 4) {
                const Chunk other = ptx::ld_global_16b(src);
                FS_UNROLL
                for (int j = 0; j < 4; ++j) {
                    o[i + j] = o[i + j] * mine[j / 2] + number(other, j) * theirs[j / 2];
                }
                src += kStride;
            }
            // All have seen the flag.
            ptx::bar_sync_named(kWarpgroupBarrier + warpgroup, kWarpgroupThreads);
            ptx::st_global_u32_if(thread == 0, flag(giver), 0);
        }
    }

  private:
    // Of this warpgroup of this block of a cluster.
    FS_DEVICE u32 place(i32 range) const {
        const u32 rank = kCluster > 1 ? ptx::cluster_ctarank() : 0;
        return (static_cast<u32>(range) * kCluster + rank) * kWarpgroups + warpgroup;
    }
    FS_DEVICE u32* flag(i32 range) const { return counter + kFirstFlag + place(range); }
    FS_DEVICE u64 part(i32 range) const {
        const u64 first = kSliced ? scratch : reinterpret_cast<u64>(counter) + kCounterBytes;
        return first + static_cast<u64>(place(range)) * kPartBytes + thread * 16;
    }

    static FS_DEVICE float number(const Chunk& from, int i) {
        return ptx::number(static_cast<i32>(from.word[i]));
    }
    static FS_DEVICE void put(u64 dst, float a, float b, float c, float d) {
        ptx::st_global_16b(dst, {{static_cast<u32>(ptx::bits(a)), static_cast<u32>(ptx::bits(b)),
                                  static_cast<u32>(ptx::bits(c)), static_cast<u32>(ptx::bits(d))}});
    }
};

}  // namespace flashsmith::sm90
