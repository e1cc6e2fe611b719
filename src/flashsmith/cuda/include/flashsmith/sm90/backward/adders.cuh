// Threads of the producer's warpgroup that add staged pieces to dQ in order: two or three of them,
// which may look for their turn before the piece is there, in heads that rise or fall.
//
// Pieces are numbered 2 step + warpgroup, on from block to block; of A adders number n takes pieces
// n, n + A, n + 2 A, … With two that is one for each warpgroup. With three, while one waits for a
// sum to be complete, another starts the warpgroup's next.
//
//   step          0     1     2     3
//   warpgroup 0   a 0   a 2   a 1   a 0      a n: adder n of three
//   warpgroup 1   a 1   a 0   a 2   a 1
//
// What a sum waits for and how it is counted is what producer.cuh says of DqAdder.
#pragma once

#include "flashsmith/ptx/bulk.cuh"
#include "flashsmith/ptx/mbarrier.cuh"
#include "flashsmith/ptx/tma.cuh"
#include "flashsmith/sm90/backward/tile.cuh"

namespace flashsmith::sm90 {

template <class Kernel>
struct DqAdders {
    using Plan = typename Kernel::Plan;
    using Args = typename Kernel::Args;
    static constexpr Sm90TilesConfig kConfig = Kernel::kConfig;
    static_assert(!Kernel::kListed, "packed sequences have the two adders of the producer.");

    const Args& args;
    i32 piece;      // this adder's next, counted from the block's first
    u32 steps = 0;  // staged in all before the block: parity

    FS_DEVICE DqAdders(const Args& args, int adder) : args(args), piece(adder) {}

    FS_DEVICE void run() {
        for (u32 seen = 0;; ++seen) {
            const u32 slot = seen % Plan::kBlockSlots;
            ptx::mbarrier_wait(Plan::block_full(slot), seen / Plan::kBlockSlots % 2);
            const KvBlock block = KvBlock::get(Plan::kv_block(slot));
            ptx::mbarrier_arrive(Plan::block_empty(slot));
            if (block.steps == 0) return;
            if (!Walk<Kernel>::is_seen(args, block.first_key)) continue;
            add_all(block);
            piece -= 2 * block.steps;
            steps += block.steps;
        }
    }

  private:
    FS_DEVICE void add_all(const KvBlock& block) {
        Walk<Kernel> walk(args, block, 0);
        const i32 heads = kConfig.in_parts ? args.kv_heads * args.parts : args.kv_heads;
        const bool rising = rises<Kernel>(args, block.batch * heads + block.kv_head);
        i32 at = 0;  // step of the walk
        _Pragma("unroll 1") for (; piece < 2 * block.steps; piece += kConfig.adders) {
            _Pragma("unroll 1") for (; at < piece / 2; ++at) walk.advance(args, 0);
            add(walk, block.first_key, rising);
        }
    }

    // kv blocks that add to a q tile before the one at `first_key`.
    FS_DEVICE u32 sums_before(i32 q_tile, i32 first_key, bool rising) const {
        constexpr i32 kKeys = kConfig.keys();
        const i32 block = first_key / kKeys;
        if (kConfig.rising && rising) return block;
        const i32 row_end = (q_tile + 1) * kConfig.q_tile_rows();
        return (Kernel::Mask::seen_before(args, row_end) + kKeys - 1) / kKeys - 1 - block;
    }

    FS_DEVICE void add(const Walk<Kernel>& walk, i32 first_key, bool rising) const {
        const u32 warpgroup = piece % 2;
        const u32 before = sums_before(walk.tile, first_key, rising);
        const u32 number = walk.index(args, 0) * 2 + warpgroup;  // a launch has fewer than 2^31
        const u64 dst =
            reinterpret_cast<u64>(args.dq_sums) + static_cast<u64>(number) * kConfig.piece_bytes();
        u32* const counter = args.counters + 1 + number;
        const SmemAddr staged = Plan::dq(warpgroup);

        // All sums before are complete, then the piece is staged; or the other way round.
        if constexpr (kConfig.early_polls) {
            if (before > 0) ptx::wait_at_least_acquire_gpu(counter, before);
        }
        const u32 of_warpgroup = steps + piece / 2;
        ptx::mbarrier_wait(Plan::dq_full(warpgroup, of_warpgroup),
                           of_warpgroup / kConfig.dq_phases() % 2);
        if constexpr (!kConfig.early_polls) {
            if (before > 0) ptx::wait_at_least_acquire_gpu(counter, before);
        }
        if (before > 0) {
            ptx::bulk_add_f32_if(true, dst, staged, kConfig.piece_bytes());
        } else {
            ptx::bulk_store(dst, staged, kConfig.piece_bytes());
        }
        ptx::bulk_commit_if(true);
        ptx::bulk_wait_read_if(true);
        ptx::mbarrier_arrive(Plan::dq_empty(warpgroup));
        ptx::bulk_wait<0>();              // the sum is complete, as this thread sees it
        ptx::fence_proxy_async_global();  // and as others do that see the counter
        ptx::st_release_gpu(counter, before + 1);
    }
};

}  // namespace flashsmith::sm90
