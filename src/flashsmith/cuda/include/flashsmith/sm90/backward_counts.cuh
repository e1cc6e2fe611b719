// Two threads of the producer's warpgroup that keep the order of sums of wide heads, so that the
// warps that multiply neither poll a counter nor wait for a sum to be complete.
//
//   counter ──► give_turns ──turn──► 8 warps add their pieces ──added──► count_sums ──► counter
//                   ▲                                                        │
//                   └────────────────────────noted───────────────────────────┘
//
// One count stands for the whole dQ of a q tile from one kv block: four pieces of two warpgroups.
// Sums are made by other threads than the one that counts them, and barriers of the block stand
// between: what a warp added before it arrived on `added` is released by who waited for that, and
// what the counter's reader acquired, a warp that waits for `turn` has acquired too (causality
// order of the PTX memory model is transitive).
//
// Turns are given up to two steps ahead, on to the CTA's next block. Barriers have one bit of
// parity: a turn is given when the sum two steps before has been noted, and so neither barrier is
// a phase ahead of who waits for it.
#pragma once

#include "flashsmith/ptx/bulk.cuh"
#include "flashsmith/ptx/mbarrier.cuh"
#include "flashsmith/sm90/backward_tile.cuh"

namespace flashsmith::sm90 {

template <class Kernel>
struct SumCounts {
    using Plan = typename Kernel::Plan;
    using Args = typename Kernel::Args;
    static_assert(!Kernel::kListed, "sums of packed sequences are counted by those that add.");

    const Args& args;
    u32 steps = 0;  // in all: stage and parity, as of those that multiply

    FS_DEVICE explicit SumCounts(const Args& args) : args(args) {}

    FS_DEVICE void give_turns() {
        for_each_step([&](u32* counter, u32 before) {
            ptx::mbarrier_wait(Plan::noted(stage()), parity() ^ 1);  // the turn before was used
            // All sums before are complete.
            if (counter != nullptr && before > 0) ptx::wait_at_least_acquire_gpu(counter, before);
            ptx::mbarrier_arrive(Plan::turn(stage()));
        });
    }

    FS_DEVICE void count_sums() {
        for_each_step([&](u32* counter, u32 before) {
            ptx::mbarrier_wait(Plan::added(stage()), parity());  // by all warps
            ptx::mbarrier_arrive(Plan::noted(stage()));
            if (counter != nullptr) ptx::st_release_gpu(counter, before + 1);
        });
    }

  private:
    FS_DEVICE int stage() const { return steps & 1; }
    FS_DEVICE u32 parity() const { return steps >> 1 & 1; }

    // `keep` is told the counter of the step's q tile, and how many add to it before. A block that
    // no row sees has one step that adds nothing, and no counter.
    template <class Keep>
    FS_DEVICE void for_each_step(Keep keep) {
        for (u32 seen = 0;; ++seen) {
            const u32 slot = seen % Plan::kTileSlots;
            ptx::mbarrier_wait(Plan::tile_full(slot), seen / Plan::kTileSlots % 2);
            const KvTile tile = KvTile::get(Plan::tile(slot));
            ptx::mbarrier_arrive(Plan::tile_empty(slot));
            if (tile.steps == 0) return;
            Walk<Kernel> walk(args, tile, 0);
            const bool adds = Walk<Kernel>::is_seen(args, tile.first_key);
            const bool rising = rises<Kernel>(args, tile.batch * args.kv_heads + tile.kv_head);
            _Pragma("unroll 1") for (i32 left = tile.steps; left > 0; --left, ++steps) {
                keep(adds ? args.counters + 1 + walk.index(args, 0) : nullptr,
                     sums_before<Kernel>(args, walk.tile, tile.first_key, rising));
                walk.advance(args, 0);
            }
        }
    }
};

}  // namespace flashsmith::sm90
