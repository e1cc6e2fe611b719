// A group's heads in parts: with `in_parts` a kv block is walked several times, with some heads of
// its group each time, by whichever ctas draw it. What a walk has of dK and dV is added to what the
// walks before it had:
//
//   part 0    dK, dV of its heads            ──► memory, in float32
//   part 1    dK, dV of its heads + memory   ──► memory
//   part 2    dK, dV of its heads + memory   ──► rounded: the gradients
//
// A group is then no longer than L2 holds, and a launch has more and shorter walks to share out
// among its ctas. Sums have one order, whoever makes them. Part 0 of all heads of K and V is drawn
// before part 1 of any: who waits for a part before its own waits for a lower number, and seldom.
#pragma once

#include "flashsmith/ptx/bulk.cuh"
#include "flashsmith/ptx/cluster.cuh"
#include "flashsmith/ptx/memory.cuh"
#include "flashsmith/ptx/warp.cuh"
#include "flashsmith/ptx/warpgroup.cuh"

namespace flashsmith::sm90 {

// Heads of Q that one walk of a kv block takes.
template <class Kernel>
FS_DEVICE i32 walked_heads(const typename Kernel::Args& args) {
    if constexpr (Kernel::kConfig.in_parts) return args.part_heads;
    return args.kv_group;
}

// The head of K and V that number `head` of a KvBlock stands for: in parts, those of one follow
// each other, as their heads of Q do.
template <class Kernel>
FS_DEVICE i32 kv_head_of(const typename Kernel::Args& args, i32 head) {
    if constexpr (Kernel::kConfig.in_parts) return head / args.parts;
    return head;
}

// Heads of K and V, or parts of their groups, of all sequences.
template <class Kernel>
FS_DEVICE u32 drawn_heads(const typename Kernel::Args& args) {
    return args.all_kv_blocks / args.kv_blocks;
}

// Heads are drawn part by part, and lie in memory head by head: from the one number to the other.
template <class Kernel>
FS_DEVICE u32 lying_at(const typename Kernel::Args& args, u32 drawn) {
    if constexpr (!Kernel::kConfig.in_parts) return drawn;
    const u32 of_part = drawn_heads<Kernel>(args) / args.parts, part = drawn / of_part;
    return (drawn - part * of_part) * args.parts + part;
}
template <class Kernel>
FS_DEVICE i32 drawn_at(const typename Kernel::Args& args, i32 lying) {
    if constexpr (!Kernel::kConfig.in_parts) return lying;
    const i32 head = lying / args.parts, of_part = drawn_heads<Kernel>(args) / args.parts;
    return (lying - head * args.parts) * of_part + head;
}

// What a warp has of a gradient of a kv block: 16 keys, as accumulators lie in registers.
template <class Kernel>
struct PartialGradient {
    using Args = typename Kernel::Args;
    static constexpr auto kConfig = Kernel::kConfig;
    static constexpr int kWarps = 2 * kConfig.keys() / 16;  // of dK and dV
    static constexpr u32 kWarpBytes = 16 * kConfig.d_head * 4;
    static constexpr int kTogether = 8;  // loads of 16 bytes on their way at a time

    const Args& args;
    u32 part;    // of the group
    u32 number;  // among those of all kv blocks
    int lane;

    // `lying`: the kv block's head among those of all sequences. `warp`: of kWarps.
    FS_DEVICE PartialGradient(const Args& args, u32 lying, i32 first_key, int warp, int lane)
        : args(args), lane(lane) {
        const u32 head = lying / args.parts;
        part = lying - head * args.parts;
        number = (head * args.kv_blocks + first_key / kConfig.keys()) * kWarps + warp;
    }

    // Adds what parts before had. Returns whether this is the last one; else the sum is handed on.
    template <int kCount>
    FS_DEVICE bool complete(float (&gradient)[kCount]) const {
        if (part > 0) {
            ptx::wait_acquire_gpu(counter(), part);
            ptx::bar_warp_sync();  // parts before are in memory, for every lane
            add_to(gradient);
        }
        if (static_cast<i32>(part) + 1 == args.parts) return true;
        FS_UNROLL
        for (int i = 0; i < kCount / 4; ++i) {
            ptx::st_global_f32x4_if(place(i), gradient[4 * i], gradient[4 * i + 1],
                                    gradient[4 * i + 2], gradient[4 * i + 3], true);
        }
        ptx::bar_warp_sync();  // all lanes have stored theirs
        ptx::st_release_gpu_if(lane == 0, counter(), part + 1);
        return false;
    }

  private:
    FS_DEVICE u32* counter() const { return args.part_counters + number; }
    FS_DEVICE u64 place(int i) const {
        return reinterpret_cast<u64>(args.part_sums) + static_cast<u64>(number) * kWarpBytes +
               i * 512 + lane * 16;
    }

    template <int kCount>
    FS_DEVICE void add_to(float (&gradient)[kCount]) const {
        FS_UNROLL
        for (int first = 0; first < kCount / 4; first += kTogether) {
            Chunk before[kTogether];
            FS_UNROLL
            for (int i = 0; i < kTogether; ++i) before[i] = ptx::ld_global_16b(place(first + i));
            FS_UNROLL
            for (int i = 0; i < 4 * kTogether; ++i) {
                gradient[4 * first + i] += __builtin_bit_cast(float, before[i / 4].word[i % 4]);
            }
        }
    }
};

}  // namespace flashsmith::sm90
