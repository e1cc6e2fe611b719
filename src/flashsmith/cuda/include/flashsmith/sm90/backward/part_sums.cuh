// dK and dV of a part of a group on their way to the next part (parts.cuh).
#pragma once

#include "flashsmith/ptx/bulk.cuh"
#include "flashsmith/ptx/cluster.cuh"
#include "flashsmith/ptx/memory.cuh"
#include "flashsmith/ptx/warpgroup.cuh"
#include "flashsmith/sm90/backward/tile.cuh"

namespace flashsmith::sm90 {

// What a warp has of dK and dV of a kv block, 16 keys of both or of one, as accumulators lie in
// registers. Not in parts it is all of them, and nothing is done here.
template <class Kernel, bool kInParts = Kernel::kConfig.in_parts>
struct PartialGradients {
    using Args = typename Kernel::Args;

    FS_DEVICE PartialGradients(const Args&, SmemAddr, int, int) {}
    template <class... Gradient>
    FS_DEVICE void add_before(Gradient&...) const {}
    template <class... Gradient>
    FS_DEVICE bool keep(const Gradient&...) const {
        return false;
    }
    FS_DEVICE void hand_on() const {}
};

template <class Kernel>
struct PartialGradients<Kernel, true> {
    using Args = typename Kernel::Args;
    static constexpr auto kConfig = Kernel::kConfig;
    static constexpr int kWarps = 8;  // that multiply
    static constexpr u32 kWarpBytes = kConfig.keys() * kConfig.d_head * 2 * 4 / kWarps;
    static constexpr int kTogether = 16;  // loads of 16 bytes on their way at a time

    const Args& args;
    u32 part;    // of the group
    u32 number;  // of the warp, among those of all kv blocks
    int lane;

    // `slot`: of the kv block. `warp`: of kWarps.
    FS_DEVICE PartialGradients(const Args& args, SmemAddr slot, int warp, int lane)
        : args(args), lane(lane) {
        const KvBlock block = KvBlock::get(slot);
        const u32 head = block.kv_head / args.parts;
        part = block.kv_head - head * args.parts;
        const u32 of_all = block.batch * args.kv_heads + head;
        number = (of_all * args.kv_blocks + block.first_key / kConfig.keys()) * kWarps + warp;
    }

    // Waits for the part before and adds what there is of it.
    template <int... kCounts>
    FS_DEVICE void add_before(float (&... gradient)[kCounts]) const {
        if (part == 0) return;
        ptx::wait_acquire_gpu(counter(), part);
        ptx::bar_warp_sync();  // it is in memory, for every lane
        int first = 0;
        (add_to(gradient, first), ...);
    }

    // To memory, unless this is the last part; returns whether it is not.
    template <int... kCounts>
    FS_DEVICE bool keep(const float (&... gradient)[kCounts]) const {
        if (is_last()) return false;
        int first = 0;
        (put(gradient, first), ...);
        return true;
    }

    // Tells the part behind; its wait for stores is short where other work stands before it.
    FS_DEVICE void hand_on() const {
        ptx::bar_warp_sync();  // all lanes have stored theirs
        ptx::st_release_gpu_if(lane == 0 && !is_last(), counter(), part + 1);
    }

  private:
    FS_DEVICE bool is_last() const { return static_cast<i32>(part) + 1 == args.parts; }
    FS_DEVICE u32* counter() const { return args.part_counters + number; }
    FS_DEVICE u64 place(int chunk) const {
        return reinterpret_cast<u64>(args.part_sums) + static_cast<u64>(number) * kWarpBytes +
               chunk * 512 + lane * 16;
    }

    template <int kCount>
    FS_DEVICE void add_to(float (&gradient)[kCount], int& first) const {
        constexpr int kStep = kCount / 4 < kTogether ? kCount / 4 : kTogether;
        FS_UNROLL
        for (int begin = 0; begin < kCount / 4; begin += kStep) {
            Chunk before[kStep];
            FS_UNROLL
            for (int i = 0; i < kStep; ++i)
                before[i] = ptx::ld_global_16b(place(first + begin + i));
            FS_UNROLL
            for (int i = 0; i < 4 * kStep; ++i) {
                gradient[4 * begin + i] += __builtin_bit_cast(float, before[i / 4].word[i % 4]);
            }
        }
        first += kCount / 4;
    }

    template <int kCount>
    FS_DEVICE void put(const float (&gradient)[kCount], int& first) const {
        FS_UNROLL
        for (int i = 0; i < kCount / 4; ++i) {
            ptx::st_global_f32x4_if(place(first + i), gradient[4 * i], gradient[4 * i + 1],
                                    gradient[4 * i + 2], gradient[4 * i + 3], true);
        }
        first += kCount / 4;
    }
};

}  // namespace flashsmith::sm90
